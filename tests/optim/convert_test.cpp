// Tests of conversions to other dtypes, of random bits, and of stochastic rounding to bf16 with its mean over many
// steps.

#include <fsdp/optim.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "optim/convert.h"
#include "optim/random_bits.h"

namespace fsdp::optim {
namespace {

// Returns numbers of each kind: both signs, ties, the smallest and largest ones, and those that are not finite.
at::Tensor numbers() {
  const auto spread = at::linspace(-3, 3, 1001, at::kFloat);
  const float infinity = std::numeric_limits<float>::infinity();
  return at::cat({spread, spread * 1e-39, spread * 1e30,
                  at::tensor({0.0F, -0.0F, 1 + 1.0F / 256, 1 + 3.0F / 256, -1 - 1.0F / 256, 3.4e38F, -3.4e38F, infinity,
                              -infinity, std::nanf("")})});
}

TEST(OptimConvert, RoundsAsLibTorchDoes) {
  const auto from = numbers();
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble, at::kFloat}) {
    const auto expected = from.to(dtype), found = at::empty_like(expected), back = at::empty_like(from);
    write_as(found.mutable_data_ptr(), dtype, from.const_data_ptr<float>(), from.numel());
    EXPECT_TRUE(at::allclose(expected, found, 0, 0, /*equal_nan=*/true)) << dtype;
    read_as(back.mutable_data_ptr<float>(), found.const_data_ptr(), dtype, from.numel());
    EXPECT_TRUE(at::allclose(expected.to(at::kFloat), back, 0, 0, /*equal_nan=*/true)) << dtype;
  }
}

TEST(OptimConvert, StochasticRoundingTakesTheUpperNeighbourAsOftenAsTheDistanceSays) {
  // Every pattern of 16 bits occurs once, so the mean is exact.
  std::vector<uint16_t> random(1 << 16);
  for (size_t i = 0; i < random.size(); ++i) random[i] = static_cast<uint16_t>(i);
  for (const float value : {1 + 0.3F / 128, -1.7F, 1e-39F, -123.456F, 1.0F, 0.0F}) {
    const std::vector<float> from(random.size(), value);
    std::vector<c10::BFloat16> to(random.size());
    write_stochastically(to.data(), from.data(), random.data(), static_cast<int64_t>(random.size()));
    double sum = 0;
    for (const auto rounded : to) sum += static_cast<double>(static_cast<float>(rounded));
    EXPECT_DOUBLE_EQ(sum / static_cast<double>(random.size()), static_cast<double>(value));
  }
}

TEST(OptimConvert, StochasticRoundingKeepsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> from{infinity, -infinity, std::nanf("")};
  const std::vector<uint16_t> random(3, 0xffff);
  std::vector<c10::BFloat16> to(3);
  write_stochastically(to.data(), from.data(), random.data(), 3);
  EXPECT_EQ(static_cast<float>(to[0]), infinity);
  EXPECT_EQ(static_cast<float>(to[1]), -infinity);
  EXPECT_TRUE(std::isnan(static_cast<float>(to[2])));
}

// The expected bits are the first known answer of the authors' implementation (Random123, kat_vectors), for philox4x32
// with 10 rounds, where counter and key are 0.
TEST(OptimConvert, RandomBitsAreThoseOfPhiloxWhereverAStretchBegins) {
  std::vector<uint16_t> bits(8), all(1000);
  fill_random(bits, 0, 0, 0);
  EXPECT_EQ(bits, (std::vector<uint16_t>{0xe8d5, 0x6627, 0xc58d, 0xe169, 0xac4c, 0xbc57, 0xdbd8, 0x9b00}));
  fill_random(all, 3, 4, 0);
  for (const size_t first : {1, 7, 8, 501}) {
    std::vector<uint16_t> part(99);
    fill_random(part, 3, 4, static_cast<int64_t>(first));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(first))) << first;
  }
}

// Returns the mean of elements that began as 1, after steps that each add 1/200 of a unit in the last place.
double sum_of_small_steps(const StateOptions& state, int64_t elements, int steps) {
  const auto parameter = torch::ones({elements}, torch::kBFloat16).requires_grad_();
  SGD optimizer({parameter}, torch::optim::SGDOptions(1.0 / 25600), state);
  for (int step = 0; step < steps; ++step) {
    parameter.mutable_grad() = -torch::ones({elements}, torch::kBFloat16);
    optimizer.step();
  }
  return parameter.detach().to(torch::kDouble).mean().item<double>();
}

TEST(OptimRounding, SmallStepsAddUpWhenTheyAreRoundedStochasticallyAndAreLostOtherwise) {
  // A unit is 1/128. 200 roundings of an element have a standard deviation of sqrt(200 (1/200) (199/200)) units, at
  // most one unit. The mean of 10,000 elements has a hundredth of it, 0.00008.
  EXPECT_EQ(sum_of_small_steps({}, 100, 200), 1.0);
  EXPECT_NEAR(sum_of_small_steps({.stochastic_rounding = true}, 10'000, 200), 1.0 + 1.0 / 128, 5 * 0.00008);
}

TEST(OptimRounding, ElementsParametersStepsAndSeedsHaveRandomNumbersOfTheirOwn) {
  const auto rounded = [](uint64_t seed, int steps, size_t which) {
    std::vector<torch::Tensor> parameters;
    for (int i = 0; i < 2; ++i) parameters.push_back(torch::ones({256}, torch::kBFloat16).requires_grad_());
    SGD optimizer(parameters, torch::optim::SGDOptions(1.0 / 256), {.stochastic_rounding = true, .seed = seed});
    for (int step = 0; step < steps; ++step) {
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : parameters) {
        parameter.fill_(1);
        parameter.mutable_grad() = -torch::ones({256}, torch::kBFloat16);
      }
      optimizer.step();
    }
    return parameters[which].detach().clone();
  };
  const auto one = rounded(1, 1, 0);
  EXPECT_GT(one.to(torch::kFloat).std().item<double>(), 0) << "elements differ";
  EXPECT_TRUE(torch::equal(one, rounded(1, 1, 0)));
  EXPECT_FALSE(torch::equal(one, rounded(1, 1, 1))) << "of another parameter";
  EXPECT_FALSE(torch::equal(one, rounded(1, 2, 0))) << "of another step";
  EXPECT_FALSE(torch::equal(one, rounded(2, 1, 0))) << "of another seed";
}

}  // namespace
}  // namespace fsdp::optim
