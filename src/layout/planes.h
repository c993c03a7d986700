#pragma once
/// \file
/// Layout of a group's parameters in flat buffers, and the rows that each rank has. This folder computes with integers
/// only.
///
/// Note [Planes]. Parameters whose rows have the same length form a plane, a matrix in which the parameters follow each
/// other. The ranks divide its rows equally: rank k has rows [k n, (k + 1) n), where n is ceil(rows / ranks), rounded
/// up so that slices are multiples of 16 bytes. Padding after the last parameter fills the plane up to ranks * n rows.
/// Whole parameters are therefore contiguous, each rank has whole rows, and slices have equal sizes, as every backend's
/// collectives need. The memory of a layout does not grow with the number of ranks.
///
/// By default a row is an index of dim 0. If this rule would pad a group by more than 12 % and more than 16,384
/// elements, `plan_planes` joins the first dims of some parameters: stacked experts of sizes [8, 14336, 4096] then have
/// 8 * 14336 rows. At the extreme a row is a single element.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::layout {

/// One parameter of a group. A scalar has no sizes; each size may be 0.
struct Item {
  std::vector<int64_t> sizes;
  /// True if rows may be shorter than an index of dim 0. The parameter must then be contiguous.
  bool may_join_dims = true;
};

/// Rows [first, first + count) of a parameter.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const RowRange&) const = default;
};

/// One parameter in a plane.
struct PlacedItem {
  /// Index of the parameter in the argument `items` of plan_planes.
  size_t number = 0;
  /// Number of leading dims that are joined: each combination of their indices is one row. 0 for a scalar, which has
  /// one row.
  size_t joined_dims = 1;
  int64_t rows = 1, row_numel = 1;
  /// Index of the parameter's first element in the plane.
  int64_t offset = 0;

  int64_t numel() const { return rows * row_numel; }
};

struct Plane {
  /// The parameters in memory order.
  std::vector<PlacedItem> items;
  int world_size = 1;
  /// Number of elements per rank: rank r's slice is [r * slice_numel, (r + 1) * slice_numel).
  int64_t slice_numel = 0;

  int64_t numel() const { return world_size * slice_numel; }
  /// Returns the rows of `items[item]` that `rank` has.
  RowRange rows_of(size_t item, int rank) const;
};

/// Alignments, in elements.
struct Alignment {
  int64_t begin = 1;  ///< each parameter begins at a multiple of `begin`, as a separately allocated tensor does,
                      ///< because a kernel may compute different bits at a less aligned address
  int64_t slice = 1;  ///< `slice_numel` of a plane is a multiple of `slice`
};

/// Returns the planes of one group's parameters. If `world_size` is 1, there is a single plane in the order of `items`,
/// whatever the lengths of rows. The result depends on the arguments only, so it is the same on all ranks.
std::vector<Plane> plan_planes(std::span<const Item> items, int world_size, Alignment alignment);

/// A rectangular part of a tensor: indices [offsets[d], offsets[d] + sizes[d]) of each dim d, which are the rows
/// [first_row, first_row + rows) in memory order.
struct Box {
  std::vector<int64_t> offsets, sizes;
  int64_t first_row = 0, rows = 0;
};

/// Splits a range of a tensor's rows into boxes, in memory order. If each row is an index of dim 0, the range is one
/// box. If rows join several dims, the range may begin and end inside an index of dim 0, and then needs several boxes.
std::vector<Box> boxes_of(std::span<const int64_t> sizes, size_t joined_dims, RowRange rows);

}  // namespace fsdp::layout
