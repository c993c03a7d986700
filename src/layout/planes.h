#pragma once
/// \file
/// Where the parameters of a group lie in its flat buffers, and which rows belong to which rank. This folder computes
/// with integers only.
///
/// Note [Planes]. Parameters whose rows have the same length form a plane, a matrix in which they lie one after
/// another. A plane's rows are dealt equally: rank k has rows [k n, (k + 1) n) for n = ceil(rows / ranks), rounded up
/// so that slices are multiples of 16 bytes, and the plane is padded to ranks * n rows behind the last parameter. Whole
/// parameters stay contiguous, each rank has whole rows, all slices are equal at every world size, so every backend's
/// own collectives fit, and a layout takes O(1) memory in ranks.
///
/// A parameter's rows are those of dim 0. Where these would pad a group by more than 12 %, its first dims are taken
/// together: stacked experts of sizes [8, 14336, 4096] have 8 * 14336 rows then. In the end rows are single elements.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::layout {

/// One parameter of a group. Sizes may be 0, and there may be none, for a scalar.
struct Item {
  std::vector<int64_t> sizes;
  /// Whether rows may be shorter than those of dim 0, for which the parameter has to be contiguous.
  bool may_join_dims = true;
};

struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const RowRange&) const = default;
};

/// One parameter in a plane.
struct PlacedItem {
  /// The parameter's index in the list that was given to plan_planes.
  size_t number = 0;
  /// How many of the parameter's first dims make up its rows together; 0 for a scalar, which has one row.
  size_t joined_dims = 1;
  int64_t rows = 1, row_numel = 1;
  /// Where the parameter begins in the plane, in elements.
  int64_t offset = 0;

  int64_t numel() const { return rows * row_numel; }
};

struct Plane {
  /// The parameters in the order in which memory holds them.
  std::vector<PlacedItem> items;
  int world_size = 1;
  /// Elements of each rank's slice: rank r's is [r * slice_numel, (r + 1) * slice_numel).
  int64_t slice_numel = 0;

  int64_t numel() const { return world_size * slice_numel; }
  /// The rows of an item that a rank has.
  RowRange rows_of(size_t item, int rank) const;
  /// The elements of all items that a rank has, without padding.
  int64_t owned_numel(int rank) const;
};

/// Alignments in elements.
struct Alignment {
  int64_t begin = 1;  ///< parameters begin at multiples of it, as tensors with memory of their own do; kernels may give
                      ///< other bits at other addresses
  int64_t slice = 1;  ///< slices are multiples
};

/// Plans one buffer's planes. Where one rank has all rows their lengths do not matter, and there is one plane in the
/// order of `items`. The result depends on the arguments only, so all ranks agree.
std::vector<Plane> plan_planes(std::span<const Item> items, int world_size, Alignment alignment);

/// Elements [offsets[d], offsets[d] + sizes[d]) of each dim d of a tensor. `first_row` and `rows` say which rows they
/// are in the tensor's order of memory.
struct Box {
  std::vector<int64_t> offsets, sizes;
  int64_t first_row = 0, rows = 0;
};

/// The boxes that consecutive rows of a tensor fill, in the order of memory. Rows of dim 0 are one box; where rows are
/// those of `joined_dims` first dims taken together, a range of them may begin and end inside an index of dim 0.
std::vector<Box> boxes_of(std::span<const int64_t> sizes, size_t joined_dims, RowRange rows);

}  // namespace fsdp::layout
