#include "batches.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <stdexcept>
#include <string>

namespace gpt {
namespace {

/// Mixes two numbers so that neighbouring seeds and steps give unrelated generators (splitmix64).
uint64_t mix(uint64_t seed, uint64_t step) {
  uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15U + step;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

[[noreturn]] void throw_too_short(const char* part, const at::Tensor& text, int64_t needed) {
  throw std::invalid_argument(std::string("the ") + part + " part of the text has " + std::to_string(text.numel()) +
                              " tokens, expected at least " + std::to_string(needed) +
                              ": give a longer text, or a smaller --seq, --batch or --update-freq");
}

/// [sequences that do not overlap, seq + 1]
at::Tensor windows_of(const at::Tensor& text, int64_t seq) { return text.unfold(0, seq + 1, seq); }

Batch inputs_and_targets(const at::Tensor& windows, int64_t seq) {
  return {windows.slice(1, 0, seq), windows.slice(1, 1)};
}

}  // namespace

void check_lengths(const at::Tensor& training, const at::Tensor& validation, BatchShape shape, int64_t ranks) {
  if (training.numel() <= shape.seq) throw_too_short("training", training, shape.seq + 1);
  if (validation.numel() <= ranks * shape.seq) throw_too_short("validation", validation, ranks * shape.seq + 1);
}

Batch training_batch(const at::Tensor& text, BatchShape shape, int64_t seed, int64_t step, Share share) {
  auto generator = at::detail::createCPUGenerator(mix(static_cast<uint64_t>(seed), static_cast<uint64_t>(step)));
  const auto starts = torch::randint(text.numel() - shape.seq, {share.count * shape.sequences}, generator,
                                     torch::TensorOptions(torch::kInt64));
  const auto mine = starts.narrow(0, share.index * shape.sequences, shape.sequences);
  return inputs_and_targets(text.unfold(0, shape.seq + 1, 1).index_select(0, mine), shape.seq);
}

int64_t steps_of_epoch(const at::Tensor& text, BatchShape shape, int64_t shares) {
  const int64_t sequences = shares * shape.sequences;
  if (text.numel() <= sequences * shape.seq) throw_too_short("training", text, sequences * shape.seq + 1);
  return (text.numel() - 1) / shape.seq / sequences;
}

Batch epoch_batch(const at::Tensor& text, BatchShape shape, int64_t seed, int64_t epoch, int64_t step, Share share) {
  auto generator = at::detail::createCPUGenerator(mix(static_cast<uint64_t>(seed), static_cast<uint64_t>(epoch)));
  const auto windows = windows_of(text, shape.seq);
  const auto order = torch::randperm(windows.size(0), generator, torch::TensorOptions(torch::kInt64));
  const auto mine = order.narrow(0, (step * share.count + share.index) * shape.sequences, shape.sequences);
  return inputs_and_targets(windows.index_select(0, mine), shape.seq);
}

std::vector<Batch> validation_batches(const at::Tensor& text, BatchShape shape, Share share) {
  const auto windows = windows_of(text, shape.seq);
  const int64_t count = windows.size(0) / share.count;
  const auto mine = windows.narrow(0, share.index * count, count);
  std::vector<Batch> batches;
  for (const auto& part : mine.split(shape.sequences)) batches.push_back(inputs_and_targets(part, shape.seq));
  return batches;
}

}  // namespace gpt
