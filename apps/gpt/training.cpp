#include "training.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "frame/progress.h"
#include "frame/schedule.h"
#include "optimizer.h"

namespace gpt {
namespace {

using text::TextBatch;
using text::TextBatches;

torch::Tensor loss_on(Model& model, const TextBatch& batch, const Axes& axes) {
  const auto device = model.parameters().front().device();
  const auto inputs = batch.inputs.to(device), targets = batch.targets.to(device);
  const auto scope = axes.open_sequence();
  return scope ? model(scope->shard(inputs, 1), scope->shard(targets, 1, -100)) : model(inputs, targets);
}

/// The micro-batches of one epoch, or of the whole training if there are no epochs. An iterator makes each micro-batch
/// when the caller reads it.
class MicroBatches {
 public:
  struct Iterator {
    TextBatch operator*() const { return of->batches_.training(number / of->of_step_, number % of->of_step_); }
    void operator++() { ++number; }
    bool operator!=(const Iterator& other) const { return number != other.number; }

    const MicroBatches* of;
    int64_t number;
  };

  MicroBatches(const TextBatches& batches, int64_t epoch, int64_t of_step)
      : batches_(batches), of_step_(of_step), steps_(batches.steps_of_pass()), first_step_(epoch * steps_) {}
  Iterator begin() const { return {this, first_step_ * of_step_}; }
  Iterator end() const { return {this, (first_step_ + steps_) * of_step_}; }

 private:
  const TextBatches& batches_;
  int64_t of_step_, steps_, first_step_;
};

double validation_loss(fsdp::Trainer& trainer, Model& model, Stages* stages, const TextBatches& batches,
                       const Axes& axes) {
  const auto measure = [&](Model& evaluated, const TextBatch& batch) -> std::vector<torch::Tensor> {
    const auto sequences = batch.inputs.size(0);
    const auto loss = stages ? stages->loss(batch) : loss_on(evaluated, batch, axes);
    if (!loss.defined()) return {torch::tensor(0.0, torch::kDouble), torch::tensor(int64_t{0})};
    return {loss.to(torch::kDouble) * sequences, torch::tensor(sequences)};
  };
  const auto sums = trainer.test(model, batches.validation(), measure);
  return sums[0] / sums[1];
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

std::string saved_line(int64_t step, const Arguments& arguments) {
  return "step " + std::to_string(step) + (arguments.async_save ? ": is being saved in " : ": saved in ") +
         arguments.save;
}

}  // namespace

Outcome train(fsdp::Trainer& trainer, Model& model, Stages* stages, torch::optim::Optimizer& optimizer,
              const TextBatches& batches, const Axes& axes, std::string_view unit, frame::StepMetrics& metrics,
              const Arguments& arguments) {
  const frame::CosineSchedule schedule{.highest = arguments.lr, .warmup = arguments.warmup, .steps = batches.steps()};
  const int64_t first = trainer.place().step;
  frame::Progress progress({.steps = batches.steps(),
                            .first = first,
                            .items_per_step = batches.tokens_per_step(),
                            .seconds_between_lines = arguments.log_seconds,
                            .is_silent = fsdp::rank() != 0});
  Outcome outcome;
  const auto on_step_start = [&](const fsdp::TrainingPlace& place) {
    set_learning_rate(optimizer, frame::cosine_learning_rate(schedule, place.step));
  };
  const auto on_step_end = [&](const fsdp::StepReport& report) {
    const int64_t done = report.place.step;
    const double loss = report.mean_loss();  // All ranks have equally large shares.
    metrics.note(done, {{"loss", loss}, {"lr", frame::cosine_learning_rate(schedule, done - 1)}}, model);
    if (progress.is_due(done)) progress.show({done, loss, model.stats()});
    if (!validates_after(done, batches, arguments)) return;
    progress.pause();
    outcome.validation_loss = validation_loss(trainer, model, stages, batches, axes);
    metrics.note_beside(done, {{"validation_loss", outcome.validation_loss}});
    progress.note(validation_line(batches.ended_epoch(done), done, outcome.validation_loss, unit));
    metrics.leave_out_time();
  };
  const auto on_saved = [&](const fsdp::TrainingPlace& place) {
    progress.note(saved_line(place.step, arguments));
    metrics.leave_out_time();
  };
  trainer.add({.on_step_start = on_step_start,
               .on_step_end = on_step_end,
               .on_save = [&](fsdp::SaveOptions&) { progress.pause(); },
               .on_saved = on_saved});

  const auto data = [&](int64_t epoch) { return MicroBatches(batches, epoch, arguments.update_freq); };
  const auto loss = [&](Model& trained, const TextBatch& batch) { return loss_on(trained, batch, axes); };
  const auto step = [&](Model&, const TextBatch& batch, double weight) { return stages->step(batch, weight); };
  outcome.is_complete = stages ? trainer.fit(model, optimizer, data, step) : trainer.fit(model, optimizer, data, loss);
  if (!outcome.is_complete)
    progress.note("a signal ended training after step " + std::to_string(trainer.place().step) +
                  "; to go on, use --resume " + arguments.save);
  else if (first >= batches.steps())
    outcome.validation_loss = validation_loss(trainer, model, stages, batches, axes);
  outcome.training_seconds = progress.seconds();
  outcome.tokens = batches.tokens_per_step() * std::max<int64_t>(batches.steps() - first, 0);
  return outcome;
}

}  // namespace gpt
