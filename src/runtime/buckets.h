#pragma once
/// \file
/// Which parameters of a group are reduced together where every rank has all rows. Integers only.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::runtime {

/// Parameters, or slots, [begin, end) of a group.
struct SlotRun {
  size_t begin = 0, end = 0;
  bool operator==(const SlotRun&) const = default;
};

/// Note [Order of buckets]. Gradients arrive in about the reverse order of the parameters, so buckets are cut from the
/// end: what is reduced first is complete first. Each bucket is a plane of its own, one stretch of memory that is
/// summed where it lies. The order is part of the model, so it is the same on every rank without asking. A model that
/// registers its parameters in another order than it uses them, or whose several dtypes put the buckets of one dtype
/// after those of another, is reduced as correctly but later, because a complete bucket waits for those before it.
/// torch's DDP records the order in which gradients arrived, and its buckets are copies.

/// Runs of neighbours in ascending order, each as long as its gradients take at most `cap_bytes`, the last one at most
/// `last_cap_bytes`, so that it is complete early; but a run has one parameter at least. `bytes`: of the parameters'
/// whole gradients.
inline std::vector<SlotRun> cut_buckets(std::span<const int64_t> bytes, int64_t last_cap_bytes, int64_t cap_bytes) {
  std::vector<SlotRun> runs;
  int64_t sum = 0;
  for (size_t slot = bytes.size(); slot-- > 0;) {
    const int64_t cap = runs.size() == 1 ? std::min(last_cap_bytes, cap_bytes) : cap_bytes;
    if (runs.empty() || sum + bytes[slot] > cap) {
      runs.push_back({slot, slot + 1});
      sum = 0;
    }
    runs.back().begin = slot;
    sum += bytes[slot];
  }
  std::ranges::reverse(runs);
  return runs;
}

}  // namespace fsdp::runtime
