#include "layout/row_layout.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace fsdp::layout {
namespace {

constexpr double kMaxPadding = 1.02;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t numel_of(std::span<const Item> items) {
  int64_t total = 0;
  for (const auto& item : items) total += item.numel;
  return total;
}

// The first aligned offset from `offset` on at which no slice boundary cuts a row of the item; nothing if there is none
// before the pattern of offsets repeats.
std::optional<int64_t> fit_item(const Item& item, int64_t offset, int64_t slice, int64_t alignment) {
  int64_t row = item.row_numel();
  if (row == 0) return offset;
  for (int64_t tries = row / std::gcd(row, alignment); tries >= 0; --tries, offset += alignment) {
    int64_t boundary = round_up(offset + 1, slice), end = offset + item.numel;
    if (boundary >= end) return offset;
    if (boundary + slice < end && slice % row != 0) return std::nullopt;
    if ((boundary - offset) % row == 0) return offset;
  }
  return std::nullopt;
}

// Offsets of the items, placed in `order` with slices of `slice` elements; nothing if they do not fit into `limit`.
std::optional<std::vector<int64_t>> place_equal(std::span<const Item> items, std::span<const size_t> order,
                                                int64_t slice, int64_t limit, int64_t alignment) {
  std::vector<int64_t> offsets(items.size());
  int64_t end = 0;
  for (size_t i : order) {
    auto offset = fit_item(items[i], round_up(end, alignment), slice, alignment);
    if (!offset || *offset + items[i].numel > limit) return std::nullopt;
    offsets[i] = *offset;
    end = *offset + items[i].numel;
  }
  return offsets;
}

// Slice lengths worth trying: the smallest multiples of one row size each, and of all of them together.
std::vector<int64_t> slice_candidates(std::span<const Item> items, int64_t smallest, int64_t largest,
                                      int64_t alignment) {
  std::vector<int64_t> candidates{round_up(smallest, alignment)};
  int64_t all_rows = alignment;
  for (const auto& item : items) {
    if (item.row_numel() == 0) continue;
    int64_t unit = std::lcm(item.row_numel(), alignment);
    candidates.push_back(round_up(smallest, unit));
    if (all_rows <= largest) all_rows = std::lcm(all_rows, item.row_numel());
  }
  candidates.push_back(round_up(smallest, all_rows));
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  std::erase_if(candidates, [&](int64_t slice) { return slice > largest; });
  return candidates;
}

std::optional<RowLayout> plan_equal(std::span<const Item> items, std::span<const std::vector<size_t>> orders,
                                    int world_size, int64_t alignment) {
  int64_t total = numel_of(items);
  if (total == 0)
    return RowLayout{
        {items.begin(), items.end()}, std::vector<int64_t>(items.size()), std::vector<int64_t>(world_size + 1), true};
  auto largest = static_cast<int64_t>(static_cast<double>(total) * kMaxPadding) / world_size;
  for (int64_t slice : slice_candidates(items, (total + world_size - 1) / world_size, largest, alignment))
    for (const auto& order : orders)
      if (auto offsets = place_equal(items, order, slice, slice * world_size, alignment)) {
        RowLayout layout{{items.begin(), items.end()}, std::move(*offsets), {}, true};
        for (int r = 0; r <= world_size; ++r) layout.boundaries.push_back(r * slice);
        return layout;
      }
  return std::nullopt;
}

// The row boundary nearest to the `target`-th element, counted without padding.
int64_t nearest_boundary(const RowLayout& layout, std::span<const size_t> order, int64_t target) {
  int64_t before = 0;
  for (size_t i : order) {
    const auto& item = layout.items[i];
    if (item.numel > 0 && target < before + item.numel) {
      int64_t row = item.row_numel();
      return layout.offsets[i] + (target - before + row / 2) / row * row;
    }
    before += item.numel;
  }
  return layout.total_numel();
}

RowLayout plan_unequal(std::span<const Item> items, std::span<const size_t> order, int world_size, int64_t alignment) {
  RowLayout layout{{items.begin(), items.end()}, std::vector<int64_t>(items.size()), {}, false};
  int64_t end = 0;
  for (size_t i : order) {
    layout.offsets[i] = round_up(end, alignment);
    end = layout.offsets[i] + items[i].numel;
  }
  layout.boundaries.assign(world_size + 1, end);
  layout.boundaries[0] = 0;
  int64_t total = numel_of(items);
  for (int k = 1; k < world_size; ++k)
    layout.boundaries[k] = std::max(layout.boundaries[k - 1], nearest_boundary(layout, order, total * k / world_size));
  return layout;
}

}  // namespace

RowRange RowLayout::rows_of(size_t item, int rank) const {
  int64_t row = items[item].row_numel(), begin = offsets[item], end = begin + items[item].numel;
  // Rows without elements belong to the last rank, so that they are somebody's.
  if (row == 0) return rank == world_size() - 1 ? RowRange{0, items[item].rows} : RowRange{};
  int64_t first = std::clamp(boundaries[rank], begin, end), last = std::clamp(boundaries[rank + 1], begin, end);
  return {(first - begin) / row, (last - first) / row};
}

int64_t RowLayout::owned_numel(int rank) const {
  int64_t owned = 0;
  for (size_t i = 0; i < items.size(); ++i) owned += rows_of(i, rank).count * items[i].row_numel();
  return owned;
}

RowLayout plan_rows(std::span<const Item> items, int world_size, int64_t alignment) {
  std::vector<size_t> as_given(items.size());
  std::iota(as_given.begin(), as_given.end(), size_t{0});
  std::vector<size_t> by_size = as_given;
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) { return items[a].numel > items[b].numel; });
  const std::vector<size_t> orders[] = {as_given, by_size};
  if (auto layout = plan_equal(items, orders, world_size, alignment)) return *std::move(layout);
  return plan_unequal(items, as_given, world_size, alignment);
}

}  // namespace fsdp::layout
