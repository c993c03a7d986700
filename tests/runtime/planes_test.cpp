
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>

#include "layout/planes.h"

namespace fsdp::layout {
namespace {

constexpr Alignment kFloats{.begin = 16, .slice = 4};  // 64 and 16 bytes

int64_t numel_of(std::span<const Plane> planes) {
  int64_t numel = 0;
  for (const auto& plane : planes) numel += plane.numel();
  return numel;
}

int64_t numel_of(std::span<const Item> items) {
  int64_t numel = 0;
  for (const auto& item : items)
    numel += std::accumulate(item.sizes.begin(), item.sizes.end(), int64_t{1}, std::multiplies<>());
  return numel;
}

// Expects that every item is in one plane, that each of its rows is on one rank and inside that rank's slice, and that
// no items overlap.
void expect_planes_hold(std::span<const Plane> planes, std::span<const Item> items) {
  std::vector<int> placed(items.size());
  for (const auto& plane : planes) {
    EXPECT_EQ(plane.slice_numel % kFloats.slice, 0);
    int64_t end = 0;
    for (size_t i = 0; i < plane.items.size(); ++i) {
      const auto& item = plane.items[i];
      ++placed[item.number];
      EXPECT_EQ(item.numel(), numel_of({&items[item.number], 1}));
      EXPECT_GE(item.offset, end);
      EXPECT_EQ(item.offset % kFloats.begin, 0);
      end = item.offset + item.numel();
      int64_t next = 0;
      for (int rank = 0; rank < plane.world_size; ++rank) {
        const auto rows = plane.rows_of(i, rank);
        if (rows.count == 0) continue;
        EXPECT_EQ(rows.first, next);
        next += rows.count;
        if (item.numel() == 0) continue;
        EXPECT_GE(item.offset + rows.first * item.row_numel, rank * plane.slice_numel);
        EXPECT_LE(item.offset + next * item.row_numel, std::max(item.offset, (rank + 1) * plane.slice_numel));
      }
      EXPECT_EQ(next, item.rows);
    }
    EXPECT_LE(end, plane.numel());
  }
  EXPECT_TRUE(std::ranges::all_of(placed, [](int times) { return times == 1; }));
}

// Compares a range of rows with its boxes, element by element. A row has the sizes that follow the first `joined_dims`.
void expect_boxes_hold(const std::vector<int64_t>& sizes, size_t joined_dims, RowRange rows) {
  std::vector<int64_t> visited;
  const auto boxes = boxes_of(sizes, joined_dims, rows);
  EXPECT_LE(boxes.size(), std::max<size_t>(1, 2 * joined_dims - 1));
  for (const auto& box : boxes) {
    EXPECT_EQ(box.first_row, rows.first + static_cast<int64_t>(visited.size()));
    std::vector<int64_t> index(joined_dims);
    for (int64_t row = 0; row < box.rows; ++row) {
      int64_t rest = row, number = 0;
      for (size_t dim = joined_dims; dim-- > 0; rest /= box.sizes[dim])
        index[dim] = box.offsets[dim] + rest % box.sizes[dim];
      for (size_t dim = 0; dim < joined_dims; ++dim) number = number * sizes[dim] + index[dim];
      visited.push_back(number);
    }
  }
  std::vector<int64_t> expected(static_cast<size_t>(rows.count));
  std::iota(expected.begin(), expected.end(), rows.first);
  EXPECT_EQ(visited, expected);
}

std::vector<Item> random_group(std::mt19937& random) {
  const auto up_to = [&](int bits) {
    const auto most = int64_t{1} << std::uniform_int_distribution<>(0, bits)(random);
    return std::uniform_int_distribution<int64_t>(0, most)(random);
  };
  std::vector<Item> items(std::uniform_int_distribution<size_t>(1, 40)(random));
  for (auto& item : items) {
    for (auto dims = std::uniform_int_distribution<>(0, 4)(random); dims > 0; --dims)
      item.sizes.push_back(up_to(dims > 2 ? 3 : 9));
    item.may_join_dims = up_to(2) > 0;
  }
  return items;
}

TEST(Planes, AThousandRandomGroupsAreDealtOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const auto items = random_group(random);
    const auto planes = plan_planes(items, 1 + i % 67, kFloats);
    expect_planes_hold(planes, items);
    for (const auto& plane : planes)
      for (size_t item = 0; item < plane.items.size(); ++item)
        expect_boxes_hold(items[plane.items[item].number].sizes, plane.items[item].joined_dims,
                          plane.rows_of(item, i % plane.world_size));
  }
}

// The parameters of one param group of a published model.
struct Model {
  const char* name;
  std::vector<Item> group;
};

std::vector<Item> gpt2_block(int64_t d) {
  return {{{d}}, {{d}}, {{3 * d, d}}, {{3 * d}}, {{d, d}},     {{d}},
          {{d}}, {{d}}, {{4 * d, d}}, {{4 * d}}, {{d, 4 * d}}, {{d}}};
}

std::vector<Item> llama_block(int64_t d, int64_t keys, int64_t hidden) {
  return {{{d}}, {{d, d}}, {{keys, d}}, {{keys, d}}, {{d, d}}, {{d}}, {{hidden, d}}, {{hidden, d}}, {{d, hidden}}};
}

std::vector<Model> models() {
  const std::vector<Item> mixtral{{{4096}}, {{4096, 4096}}, {{1024, 4096}},     {{1024, 4096}},     {{4096, 4096}},
                                  {{4096}}, {{8, 4096}},    {{8, 14336, 4096}}, {{8, 14336, 4096}}, {{8, 4096, 14336}}};
  const std::vector<Item> vit_root{{{1, 1, 768}}, {{1, 197, 768}}, {{768, 3, 16, 16}}, {{768}},
                                   {{768}},       {{768}},         {{1000, 768}},      {{1000}}};
  std::vector<Item> resnet{{{64, 3, 7, 7}}, {{64}}, {{64}}, {{1000, 2048}}, {{1000}}};
  int64_t in = 64;
  for (const auto& [width, blocks] : std::vector<std::pair<int64_t, int>>{{64, 3}, {128, 4}, {256, 6}, {512, 3}})
    for (int block = 0; block < blocks; ++block) {
      const auto add = [&](std::vector<int64_t> sizes) {
        resnet.push_back({{sizes[0]}});
        resnet.push_back({{sizes[0]}});
        resnet.push_back({std::move(sizes)});
      };
      if (block == 0) add({4 * width, in, 1, 1});
      add({width, std::exchange(in, 4 * width), 1, 1});
      add({width, width, 3, 3});
      add({4 * width, width, 1, 1});
    }
  return {{"GPT-2 124M block", gpt2_block(768)},
          {"GPT-2 124M root", {{{50257, 768}}, {{1024, 768}}, {{768}}, {{768}}}},
          {"GPT-2 XL block", gpt2_block(1600)},
          {"Llama-2 7B block", llama_block(4096, 4096, 11008)},
          {"Llama-3 8B block", llama_block(4096, 1024, 14336)},
          {"Llama-3 70B block", llama_block(8192, 1024, 28672)},
          {"Llama-3 405B block", llama_block(16384, 1024, 53248)},
          {"Mixtral block", mixtral},
          {"ViT-B block", gpt2_block(768)},
          {"ViT-B root", vit_root},
          {"ResNet-50", resnet},
          {"MLP 1000-333-77-13", {{{333, 1000}}, {{333}}, {{77, 333}}, {{77}}, {{13, 77}}, {{13}}}}};
}

// Compares the size of the whole buffer with that of the parameters.
TEST(Planes, PadModelsByAtMost12Percent) {
  const int worlds[] = {2, 4, 8, 16, 64, 128, 256, 512, 1024, 4096, 16384};
  std::printf("%-20s", "ranks");
  for (const int world : worlds) std::printf("%8d", world);
  std::printf("\n");
  std::map<std::pair<std::string, int>, double> ratios;
  for (const auto& [name, items] : models()) {
    std::printf("%-20s", name);
    for (const int world : worlds) {
      const auto planes = plan_planes(items, world, kFloats);
      expect_planes_hold(planes, items);
      const auto numel = static_cast<double>(numel_of(items)), ratio = static_cast<double>(numel_of(planes)) / numel;
      ratios[{name, world}] = ratio;
      std::printf("%8.3f", ratio);
      // A group with fewer than 16,384 / 0.12 elements keeps whole rows, so its padding may be larger.
      EXPECT_LE(ratio, std::max(1.12, 1 + 16384 / numel)) << name << " on " << world;
    }
    std::printf("\n");
  }
  const auto expect = [&](const char* name, int world, double ratio) {
    EXPECT_NEAR((ratios[{name, world}]), ratio, 0.002) << name << " on " << world;
  };
  for (const int world : {64, 128, 256}) expect("GPT-2 124M block", world, 1.000);
  for (const int world : {512, 1024}) expect("GPT-2 124M block", world, 1.112);
  expect("Llama-2 7B block", 512, 1.000);
  expect("Llama-2 7B block", 1024, 1.010);
  expect("Llama-2 7B block", 4096, 1.052);
  expect("Llama-3 8B block", 4096, 1.039);
  expect("Llama-3 70B block", 4096, 1.020);
  expect("Llama-3 405B block", 4096, 1.011);
  expect("Llama-3 405B block", 16384, 1.03);
}

TEST(Planes, OneRankHasOnePlaneInTheOrderOfTheModel) {
  const std::vector<Item> items{{{3, 5}}, {{7}}, {{2, 2, 2}}, {{}}, {{0, 4}}, {{4, 0}}};
  const auto planes = plan_planes(items, 1, kFloats);
  ASSERT_EQ(planes.size(), 1u);
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(planes[0].items[i].number, i);
    EXPECT_EQ(planes[0].items[i].offset % kFloats.begin, 0);
    EXPECT_EQ(planes[0].rows_of(i, 0), (RowRange{0, planes[0].items[i].rows}));
  }
  expect_planes_hold(planes, items);
}

TEST(Planes, AParameterWithFewRowsIsDealtByShorterOnesIfItIsContiguous) {
  for (const bool is_contiguous : {true, false}) {
    const std::vector<Item> experts{{{3, 64, 512}, is_contiguous}, {{512}}};
    const auto planes = plan_planes(experts, 2, kFloats);
    const auto& placed = planes.front().items.front();
    EXPECT_EQ(placed.joined_dims, is_contiguous ? 2u : 1u);
    EXPECT_EQ(placed.rows, is_contiguous ? 192 : 3);
  }
}

TEST(Planes, EmptyGroupsAndEmptyItemsAreLegal) {
  EXPECT_TRUE(plan_planes({}, 3, kFloats).empty());
  const std::vector<Item> items{{{0}}, {{7, 0}}, {{5}}, {{0, 3}}, {{}}};
  expect_planes_hold(plan_planes(items, 2, kFloats), items);
}

}  // namespace
}  // namespace fsdp::layout
