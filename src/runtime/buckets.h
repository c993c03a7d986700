#pragma once
/// \file
/// Which parameters of a group are reduced together. Integers only.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::runtime {

/// Slots [begin, end) of a group.
struct SlotRun {
  size_t begin = 0, end = 0;
  bool operator==(const SlotRun&) const = default;
};

/// A slot's whole gradient: how many bytes, and in which flat buffer.
struct SlotBytes {
  int64_t bytes = 0;
  size_t flat = 0;
};

/// Note [Order of buckets]. Gradients come in about the reverse order of the parameters', which is that of memory, so
/// buckets are cut from the end: what is reduced first is complete first, and a bucket is one stretch of memory that is
/// summed where it lies. The order is part of the model, so it is the same on every rank without asking. A model that
/// registers its parameters in another order than it uses them is reduced as correctly, and only later: a bucket that
/// is complete waits for those before it. torch's DDP records the order in which gradients arrived, and its buckets
/// are copies.

/// Runs of neighbours, the last one first, each as long as its gradients take at most `cap_bytes`, the first one at
/// most `first_cap_bytes`, so that it begins to travel early; but a run has one slot at least. None spans two flat
/// buffers.
inline std::vector<SlotRun> cut_buckets(std::span<const SlotBytes> slots, int64_t first_cap_bytes, int64_t cap_bytes) {
  std::vector<SlotRun> runs;
  int64_t bytes = 0;
  for (size_t slot = slots.size(); slot-- > 0;) {
    const bool is_first = runs.size() == 1;
    const bool fits = !runs.empty() && slots[slot].flat == slots[slot + 1].flat &&
                      bytes + slots[slot].bytes <= (is_first ? std::min(first_cap_bytes, cap_bytes) : cap_bytes);
    if (!fits) {
      runs.push_back({slot, slot + 1});
      bytes = 0;
    }
    runs.back().begin = slot;
    bytes += slots[slot].bytes;
  }
  return runs;
}

}  // namespace fsdp::runtime
