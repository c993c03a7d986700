#pragma once
/// \file
/// Rows of a tensor that one rank has and others want.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "layout/planes.h"
#include "state/ranks.h"

namespace fsdp::state {

/// Rows of one tensor on their way.
struct SentRows {
  std::string tensor;
  layout::RowRange rows = {};
  uint64_t bytes_per_row = 0;
  /// The rank that has them, and what there fills `bytes` with rows [first, first + count).
  int root = 0;
  std::function<void(int64_t first, int64_t count, std::span<std::byte> bytes)> fill;
};

/// Sends them to all ranks, a few MiB or one row at a time, and copies those of `wanted` to `out`, which has room for
/// these. Collective: `fill` must not throw.
void send_rows(const SentRows& sent, layout::RowRange wanted, std::span<std::byte> out, const Ranks& ranks);

}  // namespace fsdp::state
