#include "layout/row_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace fsdp::layout {
namespace {

constexpr int64_t kAlignment = 16;  // floats in 64 bytes

// Every row of every item belongs to exactly one rank and lies inside this rank's slice.
void expect_rows_are_partitioned(const RowLayout& layout) {
  for (size_t i = 0; i < layout.items.size(); ++i) {
    int64_t next = 0;
    for (int r = 0; r < layout.world_size(); ++r) {
      auto rows = layout.rows_of(i, r);
      if (rows.count == 0) continue;
      EXPECT_EQ(rows.first, next);
      next = rows.first + rows.count;
      int64_t row = layout.items[i].row_numel();
      if (row == 0) continue;
      EXPECT_GE(layout.offsets[i] + rows.first * row, layout.boundaries[r]);
      EXPECT_LE(layout.offsets[i] + next * row, layout.boundaries[r + 1]);
    }
    EXPECT_EQ(next, layout.items[i].rows);
  }
}

void expect_within_bounds(const RowLayout& layout) {
  int64_t total = 0, largest_row = 0;
  for (const auto& item : layout.items) {
    total += item.numel;
    largest_row = std::max(largest_row, item.row_numel());
  }
  auto count = static_cast<int64_t>(layout.items.size());
  EXPECT_LE(layout.total_numel(), static_cast<double>(total) * 1.02 + static_cast<double>(count * kAlignment));
  double mean = static_cast<double>(total) / layout.world_size();
  for (int r = 0; r < layout.world_size(); ++r)
    EXPECT_LE(static_cast<double>(layout.owned_numel(r)), mean * 1.02 + static_cast<double>(largest_row + kAlignment));
}

void expect_items_are_apart(const RowLayout& layout) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (size_t i = 0; i < layout.items.size(); ++i) {
    EXPECT_EQ(layout.offsets[i] % kAlignment, 0);
    if (layout.items[i].numel > 0) spans.emplace_back(layout.offsets[i], layout.offsets[i] + layout.items[i].numel);
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first);
  for (auto [begin, end] : spans) EXPECT_LE(end, layout.total_numel());
}

std::vector<Item> random_group(std::mt19937& random) {
  std::vector<Item> items(std::uniform_int_distribution<>(1, 40)(random));
  for (auto& item : items) {
    item.rows = std::uniform_int_distribution<>(0, 1 << std::uniform_int_distribution<>(0, 10)(random))(random);
    item.numel =
        item.rows * std::uniform_int_distribution<>(1, 1 << std::uniform_int_distribution<>(0, 11)(random))(random);
  }
  return items;
}

TEST(RowLayout, ThousandRandomGroupsStayWithinTheBounds) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    auto items = random_group(random);
    SCOPED_TRACE(i);
    auto layout = plan_rows(items, 2 + i % 15, kAlignment);
    expect_rows_are_partitioned(layout);
    expect_within_bounds(layout);
    expect_items_are_apart(layout);
    if (HasFailure()) return;
  }
}

TEST(RowLayout, TransformerBlockGetsEqualSlices) {
  const int64_t d = 256;
  const std::vector<Item> block{{3 * d * d, 3 * d},
                                {3 * d, 3 * d},
                                {d * d, d},
                                {d, d},
                                {4 * d * d, 4 * d},
                                {4 * d, 4 * d},
                                {4 * d * d, d},
                                {d, d},
                                {d, d},
                                {d, d},
                                {d, d}};
  for (int world : {1, 2, 3, 4, 8}) {
    auto layout = plan_rows(block, world, kAlignment);
    EXPECT_TRUE(layout.equal_slices) << world;
    expect_rows_are_partitioned(layout);
  }
}

TEST(RowLayout, MoreRanksThanRowsLeavesRanksWithoutRows) {
  const auto layout = plan_rows(std::vector<Item>{{6, 3}}, 8, kAlignment);
  expect_rows_are_partitioned(layout);
  EXPECT_TRUE(std::find(layout.boundaries.begin() + 1, layout.boundaries.end(), 6) != layout.boundaries.end());
  const auto huge = plan_rows(std::vector<Item>{{1 << 20, 1}}, 4, kAlignment);
  expect_rows_are_partitioned(huge);
  EXPECT_FALSE(huge.equal_slices);
}

TEST(RowLayout, EmptyGroupsAndEmptyItemsAreLegal) {
  EXPECT_EQ(plan_rows({}, 3, kAlignment).total_numel(), 0);
  expect_rows_are_partitioned(plan_rows(std::vector<Item>{{0, 0}, {0, 7}, {5, 5}}, 2, kAlignment));
}

}  // namespace
}  // namespace fsdp::layout
