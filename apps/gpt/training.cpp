#include "training.h"

#include <fsdp/clip_grad.h>
#include <fsdp/collectives.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "checkpoints.h"
#include "optimizer.h"
#include "train/progress.h"
#include "train/schedule.h"

namespace gpt {
namespace {

using fsdp::data::TextBatch;
using fsdp::data::TextBatches;

double loss_of(const torch::Tensor& loss) { return loss.item<double>(); }

torch::Tensor loss_on(Model& model, const TextBatch& batch, const Arguments& arguments) {
  const auto device = model.parameters().front().device();
  const frame::Autocast autocast(arguments.precision, device);
  return model(batch.inputs.to(device), batch.targets.to(device));
}

/// One optimizer step. Returns the loss of the joined batch.
double train_step(Model& model, torch::optim::Optimizer& optimizer, fsdp::GradScaler& scaler, const TextBatches& batches,
                  int64_t step, const Arguments& arguments) {
  optimizer.zero_grad();
  double sum = 0;
  for (int64_t micro_batch = 0; micro_batch < arguments.update_freq; ++micro_batch) {
    model.set_requires_gradient_sync(micro_batch + 1 == arguments.update_freq);
    const auto loss = loss_on(model, batches.training(step, micro_batch), arguments) / arguments.update_freq;
    scaler.scale(loss).backward();
    sum += loss_of(loss);
  }
  scaler.unscale_(optimizer);
  fsdp::clip_grad_norm_(model, arguments.max_grad_norm);
  scaler.step(optimizer);
  scaler.update();
  return fsdp::mean(sum);  // every rank's shares are of one size
}

bool validates_after(int64_t done, const TextBatches& batches, const Arguments& arguments) {
  return done == batches.steps() || batches.ended_epoch(done) > 0 ||
         (arguments.eval_every > 0 && done % arguments.eval_every == 0);
}

std::string validation_line(int64_t epoch, int64_t step, double loss, std::string_view unit) {
  char text[160];
  std::snprintf(text, sizeof(text), "step %ld: validation loss %.4f nats per %.*s, perplexity %.2f",
                static_cast<long>(step), loss, static_cast<int>(unit.size()), unit.data(), std::exp(loss));
  return (epoch > 0 ? "epoch " + std::to_string(epoch) + ", " : "") + text;
}

}  // namespace

double validation_loss(Model& model, const TextBatches& batches, const Arguments& arguments) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double sum = 0;
  int64_t sequences = 0;
  for (const auto& batch : batches.validation()) {
    sum += loss_of(loss_on(model, batch, arguments)) * static_cast<double>(batch.inputs.size(0));
    sequences += batch.inputs.size(0);
  }
  model->train();
  return fsdp::mean(sum / static_cast<double>(sequences));
}

Outcome train(Model& model, torch::optim::Optimizer& optimizer, fsdp::GradScaler& scaler, const TextBatches& batches,
              int64_t first, std::string_view unit, const Arguments& arguments) {
  const fsdp::train::CosineSchedule schedule{
      .highest = arguments.lr, .warmup = arguments.warmup, .steps = batches.steps()};
  fsdp::train::Progress progress(batches.steps(), batches.tokens_per_step(), arguments.log_seconds,
                                 /*is_silent=*/fsdp::rank() != 0, first);
  Outcome outcome;
  fsdp::AsyncSave saving;
  for (int64_t step = first; step < batches.steps(); ++step) {
    set_learning_rate(optimizer, fsdp::train::cosine_learning_rate(schedule, step));
    const double loss = train_step(model, optimizer, scaler, batches, step, arguments);
    const int64_t done = step + 1;
    if (progress.is_due(done)) progress.show({done, loss, model.stats()});
    if (validates_after(done, batches, arguments)) {
      progress.pause();
      outcome.validation_loss = validation_loss(model, batches, arguments);
      progress.note(validation_line(batches.ended_epoch(done), done, outcome.validation_loss, unit));
    }
    if (saves_after(done, batches.steps(), arguments)) {
      progress.pause();
      progress.note(save(saving, model, optimizer, scaler, batches, done, arguments));
    }
  }
  saving.wait();
  if (first >= batches.steps()) outcome.validation_loss = validation_loss(model, batches, arguments);
  outcome.training_seconds = progress.seconds();
  outcome.tokens = batches.tokens_per_step() * std::max<int64_t>(batches.steps() - first, 0);
  return outcome;
}

}  // namespace gpt
