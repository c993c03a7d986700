#include "training.h"

#include <fsdp/clip_grad.h>
#include <fsdp/collectives.h>
#include <torch/types.h>

#include <cmath>
#include <cstdio>

#include "batches.h"
#include "optimizer.h"
#include "progress.h"
#include "train/schedule.h"

namespace gpt {
namespace {

BatchShape batch_shape(const Arguments& arguments) { return {arguments.batch, arguments.seq}; }

double loss_of(const torch::Tensor& loss) { return loss.item<double>(); }

/// What the arguments and the length of the text make of a training.
class Plan {
 public:
  Plan(const Text& text, const Arguments& arguments)
      : text_(text),
        arguments_(arguments),
        shares_(fsdp::world_size() * arguments.update_freq),
        steps_of_epoch_(arguments.epochs > 0 ? steps_of_epoch(text.training, batch_shape(arguments), shares_) : 0),
        steps_(arguments.epochs > 0 ? arguments.epochs * steps_of_epoch_ : arguments.steps) {}

  int64_t steps() const { return steps_; }
  int64_t tokens_per_step() const { return shares_ * arguments_.batch * arguments_.seq; }

  double learning_rate(int64_t step) const {
    return fsdp::train::cosine_learning_rate({.highest = arguments_.lr, .warmup = arguments_.warmup, .steps = steps_},
                                             step);
  }

  /// The joined batch of a step is dealt to micro-batches first, then to ranks, so more ranks with fewer micro-batches
  /// train as fewer ranks with more.
  Batch batch(int64_t step, int64_t micro_batch) const {
    const Share share{micro_batch * fsdp::world_size() + fsdp::rank(), shares_};
    const BatchShape shape = batch_shape(arguments_);
    if (arguments_.epochs == 0) return training_batch(text_.training, shape, arguments_.seed, step, share);
    return epoch_batch(text_.training, shape, arguments_.seed, step / steps_of_epoch_, step % steps_of_epoch_, share);
  }

  /// The epoch that ends with the step before `done`; 0 if none does.
  int64_t ended_epoch(int64_t done) const {
    return steps_of_epoch_ > 0 && done % steps_of_epoch_ == 0 ? done / steps_of_epoch_ : 0;
  }

  bool validates_after(int64_t done) const {
    return done == steps_ || ended_epoch(done) > 0 || (arguments_.eval_every > 0 && done % arguments_.eval_every == 0);
  }

 private:
  const Text& text_;
  const Arguments& arguments_;
  int64_t shares_, steps_of_epoch_, steps_;
};

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

double validation_loss(Model& model, const Text& text, const Arguments& arguments) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double sum = 0;
  int64_t sequences = 0;
  const Share share{fsdp::rank(), fsdp::world_size()};
  for (const auto& batch : validation_batches(text.validation, batch_shape(arguments), share)) {
    sum += loss_of(loss_on(model, batch)) * static_cast<double>(batch.inputs.size(0));
    sequences += batch.inputs.size(0);
  }
  model->train();
  return fsdp::mean(sum / static_cast<double>(sequences));
}

Outcome train(Model& model, fsdp::optim::AdamW& optimizer, const Text& text, const Arguments& arguments) {
  const Plan plan(text, arguments);
  Progress progress(plan.steps(), plan.tokens_per_step(), arguments.log_seconds, /*is_silent=*/fsdp::rank() != 0);
  Outcome outcome;
  for (int64_t step = 0; step < plan.steps(); ++step) {
    set_learning_rate(optimizer, plan.learning_rate(step));
    const double loss = train_step(model, optimizer, plan, step, arguments);
    const int64_t done = step + 1;
    if (progress.is_due(done)) progress.show({done, loss, model.stats()});
    if (!plan.validates_after(done)) continue;
    progress.pause();
    outcome.validation_loss = validation_loss(model, text, arguments);
    progress.note(validation_line(plan.ended_epoch(done), done, outcome.validation_loss, text.tokenizer->unit()));
  }
  outcome.training_seconds = progress.seconds();
  outcome.tokens = plan.tokens_per_step() * plan.steps();
  return outcome;
}

}  // namespace gpt
