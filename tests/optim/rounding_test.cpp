// bf16 numbers that are rounded stochastically: their mean, and what training makes of them.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

using optim::StateOptions;
using torch::Tensor;

// The mean of elements that were 1, after steps that each ask for 1/200 of a unit in the last place.
double sum_of_small_steps(const StateOptions& state, int64_t elements, int steps) {
  const auto parameter = torch::ones({elements}, torch::kBFloat16).requires_grad_();
  optim::SGD optimizer({parameter}, torch::optim::SGDOptions(1.0 / 25600), state);
  for (int step = 0; step < steps; ++step) {
    parameter.mutable_grad() = -torch::ones({elements}, torch::kBFloat16);
    optimizer.step();
  }
  return parameter.detach().to(torch::kDouble).mean().item<double>();
}

TEST(OptimRounding, SmallStepsAddUpWhenTheyAreRoundedStochasticallyAndAreLostOtherwise) {
  // A unit is 1/128. 200 roundings of an element have a standard deviation of sqrt(200 (1/200) (199/200)) units, that
  // is one at most, the mean of 10,000 elements 1/100 of it: 0.00008.
  EXPECT_EQ(sum_of_small_steps({}, 100, 200), 1.0);
  EXPECT_NEAR(sum_of_small_steps({.stochastic_rounding = true}, 10'000, 200), 1.0 + 1.0 / 128, 5 * 0.00008);
}

TEST(OptimRounding, ElementsParametersStepsAndSeedsHaveRandomNumbersOfTheirOwn) {
  const auto rounded = [](uint64_t seed, int steps, size_t which) {
    std::vector<Tensor> parameters;
    for (int i = 0; i < 2; ++i) parameters.push_back(torch::ones({256}, torch::kBFloat16).requires_grad_());
    optim::SGD optimizer(parameters, torch::optim::SGDOptions(1.0 / 256), {.stochastic_rounding = true, .seed = seed});
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
}  // namespace fsdp::test
