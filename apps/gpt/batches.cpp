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
                              " characters, expected at least " + std::to_string(needed) +
                              ": give a longer text or a smaller --seq.");
}

Batch inputs_and_targets(const at::Tensor& windows, int64_t seq) {
  return {windows.slice(1, 0, seq), windows.slice(1, 1)};
}

}  // namespace

Batch training_batch(const at::Tensor& text, BatchShape shape, int64_t seed, int64_t step, Share share) {
  if (text.numel() <= shape.seq) throw_too_short("training", text, shape.seq + 1);
  auto generator = at::detail::createCPUGenerator(mix(static_cast<uint64_t>(seed), static_cast<uint64_t>(step)));
  const auto starts = torch::randint(text.numel() - shape.seq, {share.world_size * shape.sequences}, generator,
                                     torch::TensorOptions(torch::kInt64));
  const auto mine = starts.narrow(0, share.rank * shape.sequences, shape.sequences);
  return inputs_and_targets(text.unfold(0, shape.seq + 1, 1).index_select(0, mine), shape.seq);
}

std::vector<Batch> validation_batches(const at::Tensor& text, BatchShape shape, Share share) {
  const int64_t needed = share.world_size * shape.seq + 1;
  if (text.numel() < needed) throw_too_short("validation", text, needed);
  const auto windows = text.unfold(0, shape.seq + 1, shape.seq);
  const int64_t count = windows.size(0) / share.world_size;
  const auto mine = windows.narrow(0, share.rank * count, count);
  std::vector<Batch> batches;
  for (const auto& part : mine.split(shape.sequences)) batches.push_back(inputs_and_targets(part, shape.seq));
  return batches;
}

}  // namespace gpt
