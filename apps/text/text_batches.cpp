#include "text/text_batches.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace text {
namespace {

/// Returns a generator for a seed and a step. Mixes both numbers (splitmix64), so that neighbouring seeds and steps
/// give unrelated generators.
at::Generator generator_of(int64_t seed, int64_t step) {
  uint64_t z = (static_cast<uint64_t>(seed) + 1) * 0x9e3779b97f4a7c15U + static_cast<uint64_t>(step);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return at::detail::createCPUGenerator(z ^ (z >> 31U));
}

void check_length(const char* part, const at::Tensor& text, int64_t needed) {
  if (text.numel() >= needed) return;
  throw std::invalid_argument(std::string("the ") + part + " part of the text has " + std::to_string(text.numel()) +
                              " tokens, expected at least " + std::to_string(needed) +
                              ": give a longer text, shorter sequences, or fewer of them in a step");
}

TextBatch inputs_and_targets(const at::Tensor& windows, int64_t seq) {
  return {windows.slice(1, 0, seq), windows.slice(1, 1)};
}

}  // namespace

TextBatches::TextBatches(at::Tensor training, at::Tensor validation, const TextBatchesOptions& options)
    : training_(std::move(training)), validation_(std::move(validation)), options_(options), steps_(options.steps) {
  const bool has_epochs = options.epochs > 0;
  check_length("training", training_, (has_epochs ? sequences_per_step() : 1) * options.seq + 1);
  check_length("validation", validation_, options.world_size * options.seq + 1);
  if (!has_epochs) return;
  steps_of_epoch_ = (training_.numel() - 1) / tokens_per_step();
  steps_ = options.epochs * steps_of_epoch_;
}

int64_t TextBatches::sequences_per_step() const {
  return options_.world_size * options_.micro_batches * options_.sequences;
}

int64_t TextBatches::tokens_per_step() const { return sequences_per_step() * options_.seq; }

int64_t TextBatches::ended_epoch(int64_t done) const {
  return steps_of_epoch_ > 0 && done % steps_of_epoch_ == 0 ? done / steps_of_epoch_ : 0;
}

/// Returns the indices in the training text at which the sequences of all ranks in a step begin.
at::Tensor TextBatches::starts(int64_t step) const {
  const int64_t count = sequences_per_step(), seq = options_.seq;
  if (steps_of_epoch_ == 0)
    return at::randint(training_.numel() - seq, {count}, generator_of(options_.seed, step), at::kLong);
  const auto generator = generator_of(options_.seed, step / steps_of_epoch_);
  const auto order = at::randperm((training_.numel() - 1) / seq, generator, at::kLong);
  return order.narrow(0, step % steps_of_epoch_ * count, count) * seq;
}

TextBatch TextBatches::training(int64_t step, int64_t micro_batch) const {
  const int64_t share = micro_batch * options_.world_size + options_.rank;
  const auto mine = starts(step).narrow(0, share * options_.sequences, options_.sequences);
  return inputs_and_targets(training_.unfold(0, options_.seq + 1, 1).index_select(0, mine), options_.seq);
}

std::vector<TextBatch> TextBatches::validation() const {
  const auto windows = validation_.unfold(0, options_.seq + 1, options_.seq);
  const int64_t count = windows.size(0) / options_.world_size;
  std::vector<TextBatch> batches;
  for (const auto& part : windows.narrow(0, options_.rank * count, count).split(options_.sequences))
    batches.push_back(inputs_and_targets(part, options_.seq));
  return batches;
}

}  // namespace text
