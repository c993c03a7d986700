#include "training.h"

#include <fsdp/clip_grad.h>
#include <fsdp/collectives.h>
#include <torch/types.h>

#include <cmath>
#include <cstdio>

#include "optimizer.h"
#include "progress.h"

namespace gpt {
namespace {

double loss_of(const torch::Tensor& loss) { return loss.item<double>(); }

torch::Tensor loss_on(Model& model, const Batch& batch) {
  const auto device = model.parameters().front().device();
  return models::next_token_loss(model(batch.inputs.to(device)), batch.targets.to(device));
}

/// One optimizer step. Returns the loss of the joined batch.
double train_step(Model& model, fsdp::optim::AdamW& optimizer, const Plan& plan, int64_t step,
                  const Arguments& arguments) {
  optimizer.zero_grad();
  double sum = 0;
  for (int64_t micro_batch = 0; micro_batch < arguments.update_freq; ++micro_batch) {
    model.set_requires_gradient_sync(micro_batch + 1 == arguments.update_freq);
    const auto loss = loss_on(model, plan.batch(step, micro_batch)) / arguments.update_freq;
    loss.backward();
    sum += loss_of(loss);
  }
  fsdp::clip_grad_norm_(model, arguments.max_grad_norm);
  optimizer.step();
  return fsdp::mean(sum);  // every rank's shares are of one size
}

std::string validation_line(int64_t epoch, int64_t step, double loss, std::string_view unit) {
  char text[160];
  std::snprintf(text, sizeof(text), "step %ld: validation loss %.4f nats per %.*s, perplexity %.2f",
                static_cast<long>(step), loss, static_cast<int>(unit.size()), unit.data(), std::exp(loss));
  return (epoch > 0 ? "epoch " + std::to_string(epoch) + ", " : "") + text;
}

}  // namespace

double validation_loss(Model& model, const Plan& plan) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double sum = 0;
  int64_t sequences = 0;
  for (const auto& batch : plan.validation()) {
    sum += loss_of(loss_on(model, batch)) * static_cast<double>(batch.inputs.size(0));
    sequences += batch.inputs.size(0);
  }
  model->train();
  return fsdp::mean(sum / static_cast<double>(sequences));
}

Outcome train(Model& model, fsdp::optim::AdamW& optimizer, const Plan& plan, std::string_view unit,
              const Arguments& arguments) {
  Progress progress(plan.steps(), plan.tokens_per_step(), arguments.log_seconds, /*is_silent=*/fsdp::rank() != 0);
  Outcome outcome;
  for (int64_t step = 0; step < plan.steps(); ++step) {
    set_learning_rate(optimizer, plan.learning_rate(step));
    const double loss = train_step(model, optimizer, plan, step, arguments);
    const int64_t done = step + 1;
    if (progress.is_due(done)) progress.show({done, loss, model.stats()});
    if (!plan.validates_after(done)) continue;
    progress.pause();
    outcome.validation_loss = validation_loss(model, plan);
    progress.note(validation_line(plan.ended_epoch(done), done, outcome.validation_loss, unit));
  }
  outcome.training_seconds = progress.seconds();
  outcome.tokens = plan.tokens_per_step() * plan.steps();
  return outcome;
}

}  // namespace gpt
