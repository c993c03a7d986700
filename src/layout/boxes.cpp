#include "layout/boxes.h"

#include <algorithm>
#include <numeric>

namespace fsdp::layout {
namespace {

// The longest box that begins with row `first` and has at most `most` rows.
Box box_at(std::span<const int64_t> sizes, size_t joined_dims, int64_t first, int64_t most) {
  Box box{std::vector<int64_t>(sizes.size()), {sizes.begin(), sizes.end()}, first, 1};
  std::fill_n(box.sizes.begin(), joined_dims, 1);
  for (size_t dim = joined_dims; dim-- > 0; first /= sizes[dim]) box.offsets[dim] = first % sizes[dim];
  // A dim is full only if all behind it are.
  for (size_t dim = joined_dims; dim-- > 0;) {
    box.sizes[dim] = std::min(most / box.rows, sizes[dim] - box.offsets[dim]);
    box.rows *= box.sizes[dim];
    if (box.sizes[dim] < sizes[dim]) break;
  }
  return box;
}

}  // namespace

std::vector<Box> boxes_of(std::span<const int64_t> sizes, size_t joined_dims, RowRange rows) {
  std::vector<Box> boxes;
  if (joined_dims == 0) return rows.count == 0 ? boxes : std::vector{Box{{}, {}, 0, 1}};
  for (int64_t first = rows.first, end = rows.first + rows.count; first < end; first += boxes.back().rows)
    boxes.push_back(box_at(sizes, joined_dims, first, end - first));
  return boxes;
}

}  // namespace fsdp::layout
