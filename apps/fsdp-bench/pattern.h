#pragma once
/// \file
/// Numbers whose sums are exact, so that each element of a collective's result can be compared.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace bench {

/// The rank and the repetition that a number belongs to.
struct PatternKey {
  uint32_t rank = 0, round = 0;
};

/// Returns a whole number from 0 to 4095. Sums over up to 4096 ranks are exact in fp32. The hash is Knuth's
/// multiplicative hash (The Art of Computer Programming, volume 3, section 6.4).
constexpr float pattern(PatternKey key, int64_t index) {
  const uint32_t mixed = static_cast<uint32_t>(index) + key.rank * 97U + key.round * 10'007U;
  return static_cast<float>((mixed * 2'654'435'769U) >> 20U);
}

/// Fills a flat fp32 tensor whose first element has the index `first`.
void fill(const at::Tensor& tensor, PatternKey key, int64_t first = 0);

/// Throws fsdp::Error if a flat fp32 tensor, whose first element has the index `first`, does not hold the sum of the
/// patterns of the ranks [begin_rank, end_rank). The message has `what`, the first wrong element, and its expected and
/// actual values.
void expect_sum(const at::Tensor& tensor, const std::string& what, uint32_t begin_rank, uint32_t end_rank,
                uint32_t round, int64_t first = 0);

}  // namespace bench
