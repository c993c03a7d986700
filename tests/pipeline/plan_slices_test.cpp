// Compares the planner of slices with every composition and with published times, and tests the fit of its costs.

#include <fsdp/error.h>
#include <fsdp/plan_slices.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <numeric>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

// Returns a cost of a slice: c0 plus the sum of its positions, counted from 1.
SliceCost positions_plus(double c0) {
  return [c0](int64_t length, int64_t before) {
    return c0 + static_cast<double>(length * before + length * (length + 1) / 2);
  };
}

double seconds_of(const std::vector<int64_t>& lengths, int stages, const SliceCost& cost, int micro_batches = 1) {
  double sum = 0, largest = 0;
  for (int64_t before = 0; const int64_t length : lengths) {
    const double seconds = cost(length, std::exchange(before, before + length));
    sum += seconds;
    largest = std::max(largest, seconds);
  }
  return micro_batches * sum + (stages - 1) * largest;
}

double least_of_all_cuts(int64_t length, int stages, const SliceCost& cost, int micro_batches = 1) {
  double least = INFINITY;
  for (uint32_t cuts = 0; cuts < 1U << (length - 1); ++cuts) {
    std::vector<int64_t> lengths = {1};
    for (int64_t i = 0; i + 1 < length; ++i)
      if ((cuts >> i & 1U) != 0)
        lengths.push_back(1);
      else
        ++lengths.back();
    least = std::min(least, seconds_of(lengths, stages, cost, micro_batches));
  }
  return least;
}

TEST(PlanSlices, IsTheBestOfAllCuts) {
  struct Case {
    int64_t length;
    int stages;
    double c0, seconds;
    std::vector<int64_t> lengths;  // set if only one way to slice is the best one
  };
  for (const auto& [length, stages, c0, seconds, lengths] : std::vector<Case>{{12, 3, 0, 102, {}},
                                                                              {12, 3, 4, 142, {4, 2, 1, 1, 1, 1, 1, 1}},
                                                                              {12, 3, 8, 172, {}},
                                                                              {12, 3, 16, 214, {7, 3, 2}},
                                                                              {12, 3, 32, 290, {8, 4}},
                                                                              {16, 4, 0, 184, {}},
                                                                              {16, 4, 4, 239, {}},
                                                                              {16, 4, 8, 291, {}},
                                                                              {16, 4, 16, 357, {7, 3, 2, 2, 2}},
                                                                              {16, 4, 32, 466, {9, 4, 3}}}) {
    const auto cost = positions_plus(c0);
    const auto plan = plan_slices(length, stages, cost, 1);
    EXPECT_EQ(plan.seconds, seconds) << length << ' ' << c0;
    EXPECT_EQ(seconds_of(plan.lengths, stages, cost), seconds);
    EXPECT_EQ(std::accumulate(plan.lengths.begin(), plan.lengths.end(), int64_t{0}), length);
    if (!lengths.empty()) EXPECT_EQ(plan.lengths, lengths) << length << ' ' << c0;
    if (length == 12) EXPECT_EQ(least_of_all_cuts(length, stages, cost), seconds);
  }
}

TEST(PlanSlices, MicroBatchesInARowLeaveLessToGain) {
  size_t slices = 12;
  for (const int micro_batches : {1, 2, 4, 40}) {
    const auto plan = plan_slices(12, 3, positions_plus(16), 1, 0, micro_batches);
    EXPECT_EQ(plan.seconds, least_of_all_cuts(12, 3, positions_plus(16), micro_batches));
    EXPECT_LE(plan.lengths.size(), slices);
    slices = plan.lengths.size();
  }
  EXPECT_EQ(slices, 1U);
}

TEST(PlanSlices, SlicesEndAtTheGranularityAndOneSliceSaysThatSlicingDoesNotPay) {
  const auto plan = plan_slices(50, 4, positions_plus(0), 8);
  EXPECT_EQ(std::accumulate(plan.lengths.begin(), plan.lengths.end(), int64_t{0}), 50);
  for (size_t i = 0; i + 1 < plan.lengths.size(); ++i) EXPECT_EQ(plan.lengths[i] % 8, 0);
  EXPECT_GT(plan.lengths.size(), 2U);
  EXPECT_THAT(plan_slices(50, 1, positions_plus(0), 8).seconds, seconds_of({50}, 1, positions_plus(0)));
  EXPECT_THAT(plan_slices(50, 1, positions_plus(5), 8).lengths, testing::ElementsAre(50));
  EXPECT_THAT(plan_slices(50, 4, positions_plus(1e6), 8).lengths, testing::ElementsAre(50));
  // The plan may be worse than the best one by the tolerance for each stage.
  EXPECT_LE(plan_slices(50, 4, positions_plus(0), 8, 30).seconds, plan.seconds + 4 * 30);
}

TEST(PlanSlices, ABatchIsCutTogether) {
  // A micro-batch costs 10 plus the positions of its sequences.
  const auto cost_of = [](int64_t sequences) -> SliceCost {
    return [sequences](int64_t length, int64_t before) {
      return 10 + static_cast<double>(sequences) * positions_plus(0)(length, before);
    };
  };
  const auto plan = plan_batch(5, 8, 2, cost_of, 1);
  double seconds = 0;
  int64_t sequences = 0;
  for (const auto& micro_batch : plan.micro_batches) {
    EXPECT_EQ(micro_batch.slices.seconds, seconds_of(micro_batch.slices.lengths, 2, cost_of(micro_batch.sequences)));
    seconds += micro_batch.slices.seconds;
    sequences += micro_batch.sequences;
  }
  EXPECT_EQ(sequences, 5);
  EXPECT_EQ(seconds, plan.seconds);
  double least = INFINITY;  // over all partitions of 5
  const std::vector<std::vector<int64_t>> partitions = {{5},       {4, 1},       {3, 2},         {3, 1, 1},
                                                        {2, 2, 1}, {2, 1, 1, 1}, {1, 1, 1, 1, 1}};
  for (const auto& sizes : partitions) {
    double sum = 0;
    for (const int64_t size : sizes) sum += plan_slices(8, 2, cost_of(size), 1).seconds;
    least = std::min(least, sum);
  }
  EXPECT_EQ(plan.seconds, least);
}

TEST(PlanSlices, WhatHasNoAnswerIsRefused) {
  EXPECT_THROW(plan_slices(0, 2, positions_plus(0)), UsageError);
  EXPECT_THROW(plan_slices(8, 0, positions_plus(0)), UsageError);
  EXPECT_THROW(plan_slices(8, 2, positions_plus(0), 0), UsageError);
  EXPECT_THROW(plan_slices(8, 2, [](int64_t, int64_t) { return NAN; }), UsageError);
  EXPECT_THROW(plan_slices(8, 2, [](int64_t, int64_t) { return -1.0; }), UsageError);
  EXPECT_THROW(plan_batch(0, 8, 2, [](int64_t) { return positions_plus(0); }), UsageError);
  EXPECT_THROW(fit_slice_cost({{8, 8, 1.0}}), UsageError);
  EXPECT_THROW(fit_slice_cost({{8, 0, 0.0}}), UsageError);
}

TEST(FitSliceCost, FindsTheModelThatMadeTheTimes) {
  const auto truth = [](int64_t length, int64_t before) {
    const auto i = static_cast<double>(length), j = static_cast<double>(before);
    return 1e-3 + 2e-5 * i + (before > 0 ? 3e-4 + 1e-6 * i + 2e-7 * j + 5e-9 * i * j : 0);
  };
  std::vector<SliceTime> times;
  for (const int64_t length : {128, 256, 512, 1024})
    for (const int64_t before : {0, 128, 640, 1024}) times.push_back({length, before, truth(length, before)});
  const auto cost = fit_slice_cost(times);
  EXPECT_LT(cost.largest_error, 1e-6);
  for (const auto& [length, before] : {std::pair{128, 0}, {384, 0}, {300, 700}, {1024, 3072}})
    EXPECT_NEAR(cost(length, before), truth(length, before), 1e-6 * truth(length, before)) << length << ' ' << before;
  // The fit reports noise of 1 %.
  times.back().seconds *= 1.05;
  EXPECT_GT(fit_slice_cost(times).largest_error, 0.005);
}

// Published times of one step of GPT-3 175B on 96 stages (Z. Li et al., TeraPipe, 2021, setting 9, figure 7), with 2048
// tokens in 1 to 128 equal slices.
struct Published {
  int64_t slices;
  double seconds;
};
constexpr std::array<Published, 7> kPublished = {
    {{1, 9.990}, {4, 2.902}, {8, 1.892}, {16, 1.547}, {32, 1.593}, {64, 2.227}, {128, 3.252}}};
constexpr int64_t kTokens = 2048;
constexpr int kStages = 96;

// A small slice costs as much as a larger one. The fitted form is sqrt(floor^2 + (slope length)^2).
SliceCost cost_with_floor(double floor, double slope) {
  return [=](int64_t length, int64_t) { return std::hypot(floor, slope * static_cast<double>(length)); };
}

double step_of_equal_slices(int64_t slices, const SliceCost& cost) {
  return seconds_of(std::vector<int64_t>(static_cast<size_t>(slices), kTokens / slices), kStages, cost);
}

// Fits the logarithms of the times by least squares, on a grid that gets finer around the best point.
SliceCost fit_published(int64_t without_slices) {
  double floor = 1e-2, slope = 1e-4, least = INFINITY;
  for (double step = 1.5; step > 1.0005; step = std::sqrt(step))
    for (bool improves = true; std::exchange(improves, false);)
      for (const auto& [by_floor, by_slope] : {std::pair{step, 1.0}, {1 / step, 1.0}, {1.0, step}, {1.0, 1 / step}}) {
        double sum = 0;
        for (const auto& [slices, seconds] : kPublished)
          if (slices != without_slices)
            sum += std::pow(
                std::log(step_of_equal_slices(slices, cost_with_floor(floor * by_floor, slope * by_slope)) / seconds),
                2);
        if (sum >= least) continue;
        least = sum;
        floor *= by_floor;
        slope *= by_slope;
        improves = true;
      }
  return cost_with_floor(floor, slope);
}

TEST(FitSliceCost, PredictsEachPublishedTimeFromTheOthers) {
  for (const auto& [slices, seconds] : kPublished) {
    const double predicted = step_of_equal_slices(slices, fit_published(slices));
    RecordProperty("slices_" + std::to_string(slices), std::to_string(predicted));
    if (kTokens / slices >= 128) EXPECT_NEAR(predicted, seconds, 0.15 * seconds) << slices << " slices";
  }
  const auto plan = plan_slices(kTokens, kStages, fit_published(0), 8, 1e-4);
  // The published plan took 1.481 s. Its slices get shorter, because later tokens see more keys. The form that is
  // fitted to whole steps does not know the cost of a token at each position.
  EXPECT_NEAR(plan.seconds, 1.481, 0.15 * 1.481);
  std::cout << "[ figures  ] planned " << plan.seconds << " s with " << plan.lengths.size()
            << " slices; published 1.481 s with 19\n";
}

}  // namespace
}  // namespace fsdp
