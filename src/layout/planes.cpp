#include "layout/planes.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace fsdp::layout {
namespace {

// If padding exceeds both limits (a share of the group's elements, and a number of elements), rows get shorter.
constexpr double kMaxPadding = 0.12;
constexpr int64_t kFew = 16'384;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t product(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

PlacedItem item_of(size_t number, const Item& item, size_t joined_dims) {
  const std::span sizes(item.sizes);
  return {number, joined_dims, product(sizes.first(joined_dims)), product(sizes.subspan(joined_dims))};
}

// Joins as many more dims of the item as it takes to make its rows shorter. Returns false if they cannot be shorter.
bool shorten(PlacedItem& placed, const Item& item) {
  if (!item.may_join_dims || placed.numel() == 0) return false;
  for (size_t dims = placed.joined_dims + 1; dims <= item.sizes.size(); ++dims) {
    const auto joined = item_of(placed.number, item, dims);
    if (joined.row_numel == placed.row_numel) continue;
    placed = joined;
    return true;
  }
  return false;
}

Plane plane_of(std::vector<PlacedItem> items, int64_t row_numel, int world_size, Alignment alignment) {
  int64_t rows = 0;
  for (auto& item : items) {
    rows = round_up(rows, alignment.begin / std::gcd(alignment.begin, row_numel));
    item.offset = rows * row_numel;
    rows += item.numel() / row_numel;
  }
  const int64_t of_each =
      round_up((rows + world_size - 1) / world_size, alignment.slice / std::gcd(alignment.slice, row_numel));
  return {std::move(items), world_size, of_each * row_numel};
}

// Makes one plane of all items that have the same row length. Items without elements go to the plane of row length 1.
std::vector<Plane> planes_of(const std::vector<PlacedItem>& items, int world_size, Alignment alignment) {
  std::map<int64_t, std::vector<PlacedItem>, std::greater<>> by_length;
  for (const auto& item : items) by_length[world_size == 1 || item.numel() == 0 ? 1 : item.row_numel].push_back(item);
  std::vector<Plane> planes;
  for (auto& [row_numel, members] : by_length)
    planes.push_back(plane_of(std::move(members), row_numel, world_size, alignment));
  return planes;
}

int64_t padding_of(const Plane& plane) {
  int64_t padding = plane.numel();
  for (const auto& item : plane.items) padding -= item.numel();
  return padding;
}

int64_t padding_of(std::span<const Plane> planes) {
  int64_t padding = 0;
  for (const auto& plane : planes) padding += padding_of(plane);
  return padding;
}

// Shortens the rows of parameters in one plane: of the planes in which rows can be shorter, the one with the most
// padding. Returns false if there is no such plane.
bool shorten_rows(std::vector<PlacedItem>& placed, std::vector<Plane> planes, std::span<const Item> items) {
  std::ranges::stable_sort(planes, std::greater<>(), [](const Plane& plane) { return padding_of(plane); });
  for (const auto& plane : planes) {
    bool is_shorter = false;
    for (const auto& item : plane.items) is_shorter |= shorten(placed[item.number], items[item.number]);
    if (is_shorter) return true;
  }
  return false;
}

// Returns the largest box that begins with row `first` and has at most `most` rows.
Box box_at(std::span<const int64_t> sizes, size_t joined_dims, int64_t first, int64_t most) {
  Box box{std::vector<int64_t>(sizes.size()), {sizes.begin(), sizes.end()}, first, 1};
  std::fill_n(box.sizes.begin(), joined_dims, 1);
  for (size_t dim = joined_dims; dim-- > 0; first /= sizes[dim]) box.offsets[dim] = first % sizes[dim];
  // The box may grow along a dim only while it covers all later joined dims completely.
  for (size_t dim = joined_dims; dim-- > 0;) {
    box.sizes[dim] = std::min(most / box.rows, sizes[dim] - box.offsets[dim]);
    box.rows *= box.sizes[dim];
    if (box.sizes[dim] < sizes[dim]) break;
  }
  return box;
}

}  // namespace

RowRange Plane::rows_of(size_t item, int rank) const {
  const auto& placed = items[item];
  // The last rank has the rows that have no elements, so that each row has an owner.
  if (placed.numel() == 0) return rank == world_size - 1 ? RowRange{0, placed.rows} : RowRange{};
  const auto row_at = [&](int64_t element) {
    return std::clamp<int64_t>(element - placed.offset, 0, placed.numel()) / placed.row_numel;
  };
  const int64_t first = row_at(rank * slice_numel), end = row_at((rank + 1) * slice_numel);
  return end > first ? RowRange{first, end - first} : RowRange{};
}

std::vector<Plane> plan_planes(std::span<const Item> items, int world_size, Alignment alignment) {
  std::vector<PlacedItem> placed;
  int64_t numel = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    placed.push_back(item_of(i, items[i], std::min<size_t>(items[i].sizes.size(), 1)));
    numel += placed.back().numel();
  }
  auto planes = planes_of(placed, world_size, alignment);
  if (world_size == 1) return planes;
  const auto most = std::max(kFew, static_cast<int64_t>(kMaxPadding * static_cast<double>(numel)));
  while (padding_of(planes) > most && shorten_rows(placed, planes, items))
    planes = planes_of(placed, world_size, alignment);
  return planes;
}

std::vector<Box> boxes_of(std::span<const int64_t> sizes, size_t joined_dims, RowRange rows) {
  std::vector<Box> boxes;
  if (joined_dims == 0) return rows.count == 0 ? boxes : std::vector{Box{{}, {}, 0, 1}};
  for (int64_t first = rows.first, end = rows.first + rows.count; first < end; first += boxes.back().rows)
    boxes.push_back(box_at(sizes, joined_dims, first, end - first));
  return boxes;
}

}  // namespace fsdp::layout
