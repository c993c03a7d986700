#pragma once
/// \file
/// Rows as boxes of the whole tensor. Integers only.

#include <cstdint>
#include <span>
#include <vector>

#include "layout/planes.h"

namespace fsdp::layout {

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
