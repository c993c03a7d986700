#include "optim/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace fsdp::optim {
namespace {

using Limits = std::numeric_limits<double>;

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (double value : values) sum.add(value);
  return sum.value();
}

// Returns values with magnitudes over nearly all exponents, so that most orders of addition round differently.
std::vector<double> wild_values(std::mt19937& random, size_t count) {
  std::uniform_real_distribution<double> mantissa(1.0, 2.0);
  std::uniform_int_distribution<int> exponent(-1070, 900), near(-30, 30);
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(std::ldexp(mantissa(random), i % 8 == 0 ? exponent(random) : near(random)));
  return values;
}

TEST(OptimExactSum, LosesNothing) {
  for (double value :
       {0.0, 1.0, 0.1, 3.0e300, Limits::max(), Limits::min(), Limits::denorm_min(), 5 * Limits::denorm_min()})
    EXPECT_EQ(sum_of({value}), value);
  EXPECT_EQ(ExactSum().value(), 0.0);
  std::vector<double> values{1e16};
  values.insert(values.end(), 1000, 1.0);
  EXPECT_EQ(sum_of(values), 1e16 + 1000) << "small addends beside a large one";
  EXPECT_EQ(sum_of({1.0, Limits::denorm_min(), Limits::denorm_min()}), 1.0);
}

TEST(OptimExactSum, EqualsIntegersThatADoubleHolds) {
  std::mt19937 random(1);
  ExactSum sum;
  int64_t expected = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto value = static_cast<int64_t>(random());
    sum.add(std::ldexp(static_cast<double>(value), -200));
    expected += value;
  }
  EXPECT_EQ(sum.value(), std::ldexp(static_cast<double>(expected), -200));
}

TEST(OptimExactSum, OrderAndPartsDoNotMatterToTheBits) {
  std::mt19937 random(2);
  int naive_sums_that_differ = 0;
  for (int round = 0; round < 20; ++round) {
    auto values = wild_values(random, 500);
    std::erase_if(values, [](double value) { return value > 1e30; });  // these would hide all others
    const double expected = sum_of(values), naive = std::accumulate(values.begin(), values.end(), 0.0);
    EXPECT_NEAR(expected, naive, 1e-12 * expected);
    std::shuffle(values.begin(), values.end(), random);
    naive_sums_that_differ += std::accumulate(values.begin(), values.end(), 0.0) != naive;
    EXPECT_EQ(sum_of(values), expected);
    std::vector<ExactSum> parts(1 + random() % 7);
    for (double value : values) parts[random() % parts.size()].add(value);
    ExactSum joined;
    for (const auto& part : parts) joined.add(part);
    EXPECT_EQ(joined.value(), expected);
  }
  EXPECT_GT(naive_sums_that_differ, 10);  // otherwise the test shows nothing
}

TEST(OptimExactSum, WordsOfRanksAddUpAsDoubles) {
  std::mt19937 random(3);
  const auto values = wild_values(random, 2000);
  std::array<double, ExactSum::kWords> total{};
  for (size_t rank = 0; rank < 8; ++rank) {
    ExactSum part;
    for (size_t i = rank; i < values.size(); i += 8) part.add(values[i]);
    const auto words = part.words();
    for (size_t i = 0; i < total.size(); ++i) total[i] += words[i];
  }
  EXPECT_EQ(ExactSum::from_words(total).value(), sum_of(values));
}

TEST(OptimExactSum, WhatIsNotFiniteStaysSoAlsoThroughWords) {
  EXPECT_EQ(sum_of({1.0, Limits::infinity(), 2.0}), Limits::infinity());
  EXPECT_TRUE(std::isnan(sum_of({Limits::infinity(), Limits::quiet_NaN(), 2.0})));
  EXPECT_EQ(sum_of({Limits::max(), Limits::max()}), Limits::infinity());
  ExactSum sum;
  sum.add(Limits::infinity());
  const auto words = sum.words();
  EXPECT_EQ(ExactSum::from_words(words).value(), Limits::infinity());
}

double signed_sum_of(const std::vector<double>& values) {
  SignedExactSum first, second;
  for (size_t i = 0; i < values.size(); ++i) (i % 2 == 0 ? first : second).add(values[i]);
  SignedExactSum sum;
  for (const auto& part : {first, second}) sum.add(SignedExactSum::from_words(part.words()));
  return sum.value();
}

TEST(OptimSignedExactSum, SubtractsWithoutRoundingAndKeepsWhatIsNotFinite) {
  EXPECT_EQ(signed_sum_of({1e300, 1.0, -1e300}), 1.0);
  EXPECT_EQ(signed_sum_of({1e300, -Limits::denorm_min(), -1e300}), -Limits::denorm_min());
  EXPECT_EQ(signed_sum_of({0.1, -0.1}), 0.0);
  EXPECT_EQ(signed_sum_of({-0.5, 2.0, -4.0}), -2.5);
  EXPECT_EQ(signed_sum_of({}), 0.0);
  EXPECT_EQ(signed_sum_of({1.0, -Limits::infinity()}), -Limits::infinity());
  EXPECT_EQ(signed_sum_of({1.0, Limits::infinity()}), Limits::infinity());
  EXPECT_TRUE(std::isnan(signed_sum_of({Limits::infinity(), -Limits::infinity()})));
  EXPECT_TRUE(std::isnan(signed_sum_of({1.0, std::nan("")})));
}

TEST(OptimSignedExactSum, OrderDoesNotMatterToTheBits) {
  std::mt19937 random(3);
  auto values = wild_values(random, 1001);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = -values[i];
  const double expected = signed_sum_of(values);
  for (int i = 0; i < 5; ++i) {
    std::ranges::shuffle(values, random);
    EXPECT_EQ(signed_sum_of(values), expected);
  }
}

}  // namespace
}  // namespace fsdp::optim
