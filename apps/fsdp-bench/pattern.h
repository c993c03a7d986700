#pragma once
/// \file
/// Numbers whose sums are exact, so that what a collective delivers can be compared element by element.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace bench {

/// Whose numbers, and of which repetition.
struct PatternKey {
  uint32_t rank = 0, round = 0;
};

/// A whole number from 0 to 4095; in fp32, sums over as many as 4096 ranks are exact. The hash is Knuth's
/// multiplicative one (The Art of Computer Programming, volume 3, section 6.4).
constexpr float pattern(PatternKey key, int64_t index) {
  const uint32_t mixed = static_cast<uint32_t>(index) + key.rank * 97U + key.round * 10'007U;
  return static_cast<float>((mixed * 2'654'435'769U) >> 20U);
}

/// Fills a flat fp32 tensor; its first element has index `first`.
void fill(const at::Tensor& tensor, PatternKey key, int64_t first = 0);

/// Throws fsdp::Error naming `what`, the first wrong element, what was expected and what was found, unless the flat
/// fp32 tensor, whose first element has index `first`, holds the sum of the patterns of ranks [begin_rank, end_rank).
void expect_sum(const at::Tensor& tensor, const std::string& what, uint32_t begin_rank, uint32_t end_rank,
                uint32_t round, int64_t first = 0);

}  // namespace bench
