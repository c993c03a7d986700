#include <bootstrap.h>
#include <gtest/gtest.h>
#include <statistics.h>
#include <step_times.h>

namespace bench {
namespace {

TEST(Bound, IsForwardAndBackwardAndARanksShareOfTheOptimizer) {
  const StepTimes alone{.forward = 10, .backward = 20, .optimizer = 6};
  EXPECT_EQ(bound(alone, 1), alone.total());
  EXPECT_EQ(bound(alone, 3), 32);
}

TEST(Median, IsTheMiddleValueOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

// With 11 values, a resample's median is at most the k-th smallest when 6 or more of its 11 draws are: with probability
// P(Bin(11, k/11) >= 6), which is 0.007 for k = 2, 0.051 for k = 3, 0.949 for k = 8 and 0.993 for k = 9.
TEST(BootstrapMedian, IsTheIntervalThatTheBinomialDistributionGives) {
  const auto interval = bootstrap_median({70, 10, 110, 40, 90, 20, 60, 100, 30, 80, 50});
  EXPECT_EQ(interval.low, 30);
  EXPECT_EQ(interval.high, 90);
}

// P(Bin(11, 4/11) >= 6) = 0.17, P(Bin(11, 5/11) >= 6) = 0.38.
TEST(BootstrapMedian, IsNarrowerForLessConfidence) {
  const auto interval = bootstrap_median({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, /*confidence=*/0.5);
  EXPECT_EQ(interval.low, 5);
  EXPECT_EQ(interval.high, 7);
}

TEST(BootstrapMedian, IsOnePointWhenAllValuesAreEqual) {
  const auto interval = bootstrap_median({1.5, 1.5, 1.5, 1.5});
  EXPECT_EQ(interval.low, 1.5);
  EXPECT_EQ(interval.high, 1.5);
}

TEST(BootstrapMedian, IsTheSameForTheSameSeedAndAnotherForAnother) {
  std::vector<double> values;
  for (int i = 0; i < 400; ++i) values.push_back((i * 7919) % 1009);
  const auto low = [&](uint64_t seed) { return bootstrap_median(values, 0.95, /*resamples=*/200, seed).low; };
  EXPECT_EQ(low(1), low(1));
  EXPECT_NE(low(1), low(2));
}

}  // namespace
}  // namespace bench
