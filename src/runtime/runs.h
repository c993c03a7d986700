#pragma once
/// \file
/// Which rows one call of a kernel can update together. Integers only.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::runtime {

/// What is done to rows, as numbers; equal recipes may share a call.
using Recipe = std::array<int64_t, 3>;

/// Where a tensor begins.
struct Spot {
  uint64_t block = 0;  ///< the block of memory that it is a part of; 0: memory of its own
  int64_t first = 0;   ///< its first element, counted from the block's
};

/// The rows of one parameter, with all that is read or written beside them.
struct Extent {
  bool is_updated = false;  ///< otherwise the rows stay as they are
  Recipe recipe{};
  int64_t numel = 0;
  std::vector<Spot> spots;  ///< of the rows, then of the gradient and the state
};

/// `count` extents from `first` on, and the elements from the begin of the first to the end of the last.
struct Run {
  size_t first = 0;
  size_t count = 0;
  int64_t numel = 0;
  bool operator==(const Run&) const = default;
};

/// The maximal runs of `extents`, which are listed in the order of memory, none left out.
///
/// Two neighbours share a run if both are updated by the same recipe, and each tensor of the one is as far from the
/// same tensor of the other as their rows are, in one block. What lies between them is then padding everywhere.
std::vector<Run> plan_runs(std::span<const Extent> extents);

}  // namespace fsdp::runtime
