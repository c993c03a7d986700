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

// A small regression in pure bf16: how far the parameters are from those of fp32 at the end, as a part of their way.
double distance_from_fp32(const StateOptions& state) {
  const auto train = [](c10::ScalarType dtype, const StateOptions& options) {
    torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
    int index = 0;
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters())
        parameter.copy_(0.3 * samples({0, index++, 1}, parameter.sizes().vec()).squeeze(0));
    }
    net->to(dtype);
    optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-4).weight_decay(0), options);
    std::vector<Tensor> begin, end;
    for (const auto& parameter : net->parameters()) begin.push_back(parameter.detach().to(torch::kDouble, false, true));
    for (int step = 0; step < 400; ++step) {
      const auto x = samples({step % 16, 0, 32}, {8}).to(dtype);
      optimizer.zero_grad();
      (net->forward(x) - x.sum(1, true).sin()).pow(2).mean().backward();
      optimizer.step();
    }
    for (const auto& parameter : net->parameters()) end.push_back(parameter.detach().to(torch::kDouble));
    std::vector<Tensor> all;
    for (size_t i = 0; i < end.size(); ++i) all.push_back((end[i] - begin[i]).flatten());
    return torch::cat(all);
  };
  const auto expected = train(torch::kFloat, {}), found = train(torch::kBFloat16, state);
  return ((found - expected).norm() / expected.norm()).item<double>();
}

TEST(OptimRounding, PureBf16WithStochasticRoundingComesCloserToFp32) {
  const double nearest = distance_from_fp32({}), stochastic = distance_from_fp32({.stochastic_rounding = true});
  EXPECT_LT(stochastic, 0.5 * nearest);
}

}  // namespace
}  // namespace fsdp::test
