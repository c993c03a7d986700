#pragma once
/// \file
/// Where the parameters of a group lie in its flat buffer, and which rows belong to which rank. Integers only.
///
/// Note [Layout rule]. Parameters start on an aligned element; a boundary between two ranks that falls inside a
/// parameter falls on one of its rows (dim 0), so a rank owns whole rows. Slices are equal when that costs at most 2 %
/// of padding (then native collectives of equal parts fit); otherwise boundary k is the row boundary nearest to k/world
/// of the elements, and parts are unequal. A slice that is a multiple of every row size would be simpler and explodes:
/// an MLP 1000-333-77-13 would take thousands of times its size.

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::layout {

/// One parameter: its elements and its rows (the extent of dim 0; 1 for a scalar). Elements and rows may be 0.
struct Item {
  int64_t numel = 0;
  int64_t rows = 1;

  int64_t row_numel() const { return rows == 0 ? 0 : numel / rows; }
};

struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const RowRange&) const = default;
};

struct RowLayout {
  std::vector<Item> items;
  /// Per item: its first element in the flat buffer.
  std::vector<int64_t> offsets;
  /// world + 1 entries: rank r's slice is the elements [boundaries[r], boundaries[r + 1]).
  std::vector<int64_t> boundaries;
  /// Whether all slices have the same length.
  bool equal_slices = false;

  int world_size() const { return static_cast<int>(boundaries.size()) - 1; }
  int64_t total_numel() const { return boundaries.back(); }
  int64_t slice_numel(int rank) const { return boundaries[rank + 1] - boundaries[rank]; }
  /// The rows of an item that a rank owns.
  RowRange rows_of(size_t item, int rank) const;
  /// The elements of all items that a rank owns, without padding.
  int64_t owned_numel(int rank) const;
};

/// Plans a group. `alignment` is in elements. The result depends on the arguments only, so all ranks agree.
RowLayout plan_rows(std::span<const Item> items, int world_size, int64_t alignment);

}  // namespace fsdp::layout
