#include "training.h"

#include <fsdp/clip_grad.h>
#include <fsdp/process_group.h>
#include <torch/types.h>

#include <cstdio>

#include "batches.h"
#include "optimizer.h"
#include "progress.h"

namespace gpt {
namespace {

Share share() { return {fsdp::rank(), fsdp::world_size()}; }

BatchShape batch_shape(const Arguments& arguments) { return {arguments.batch, arguments.seq}; }

/// Every rank's shares are of one size, so this is the mean over the joined batch.
double mean_over_ranks(double value) {
  const auto sum = torch::full({1}, value, torch::kFloat64);
  fsdp::default_process_group()->communicator().all_reduce(sum, fsdp::ReduceOp::kSum, {"loss", {}})->wait();
  return sum.item<double>() / fsdp::world_size();
}

/// One optimizer step. Returns the loss of the joined batch.
double train_step(Model& model, fsdp::optim::AdamW& optimizer, const Batch& batch, double max_grad_norm) {
  optimizer.zero_grad();
  const auto loss = models::next_token_loss(model(batch.inputs), batch.targets);
  loss.backward();
  fsdp::clip_grad_norm_(model, max_grad_norm);
  optimizer.step();
  return mean_over_ranks(loss.item<double>());
}

std::string validation_line(int64_t step, double loss) {
  char text[80];
  std::snprintf(text, sizeof(text), "step %ld: validation loss %.4f nats per character", static_cast<long>(step), loss);
  return text;
}

}  // namespace

double validation_loss(Model& model, const Text& text, const Arguments& arguments) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  int64_t sequences = 0;
  for (const auto& batch : validation_batches(text.validation(), batch_shape(arguments), share())) {
    const auto loss = models::next_token_loss(model(batch.inputs), batch.targets);
    sum += loss.item<double>() * static_cast<double>(batch.inputs.size(0));
    sequences += batch.inputs.size(0);
  }
  return mean_over_ranks(sum / static_cast<double>(sequences));
}

Outcome train(Model& model, fsdp::optim::AdamW& optimizer, const Text& text, const Arguments& arguments) {
  const int64_t tokens_per_step = fsdp::world_size() * arguments.batch * arguments.seq;
  Progress progress(arguments.steps, tokens_per_step, arguments.log_seconds, /*is_silent=*/fsdp::rank() != 0);
  Outcome outcome;
  for (int64_t step = 0; step < arguments.steps; ++step) {
    const auto batch = training_batch(text.training(), batch_shape(arguments), arguments.seed, step, share());
    set_learning_rate(optimizer, learning_rate(arguments, step));
    const double loss = train_step(model, optimizer, batch, arguments.max_grad_norm);
    const int64_t done = step + 1;
    if (progress.is_due(done)) progress.show({done, loss, model.stats()});
    const bool is_last = done == arguments.steps;
    if (is_last || (arguments.eval_every > 0 && done % arguments.eval_every == 0)) {
      progress.pause();
      outcome.validation_loss = validation_loss(model, text, arguments);
      progress.note(validation_line(done, outcome.validation_loss));
    }
  }
  outcome.training_seconds = progress.seconds();
  outcome.tokens = tokens_per_step * arguments.steps;
  return outcome;
}

}  // namespace gpt
