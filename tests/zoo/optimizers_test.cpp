// Tests of torch::optim's element-wise optimizers on model->parameters() itself.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

namespace optim = torch::optim;
using optim::AdamOptions;
using optim::AdamWOptions;
using optim::SGDOptions;

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(ScaledNet&)>;

AnyProgram stepped(const MakeOptimizer& make, Shard shard = shard_first_then_root) {
  return program_of<ScaledNet>(
      [make](ScaledNet& net, const Role& role) {
        auto optimizer = make(net);
        return descend_by(*optimizer, [&](int step) { return learn(net, role, step); });
      },
      std::move(shard));
}

template <class Optimizer, class Options>
AnyProgram stepped_by(Options options) {
  return stepped([=](ScaledNet& net) { return std::make_unique<Optimizer>(net.parameters(), options); });
}

std::unique_ptr<optim::Optimizer> with_a_learning_rate_each(ScaledNet& net) {
  std::vector<Tensor> decayed{net.in->weight, net.out->weight}, others{net.in->bias, net.out->bias, net.scale};
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0.1)));
  groups.emplace_back(others, std::make_unique<AdamWOptions>(AdamWOptions(0.005).weight_decay(0.0)));
  return std::make_unique<optim::AdamW>(groups);
}

class ZooOptimizers : public ZooTable {};

TEST_P(ZooOptimizers, EqualTheUnshardedRun) { expect_same(); }

INSTANTIATE_TEST_SUITE_P(
    Zoo, ZooOptimizers,
    testing::Values(ZooCase{"SgdWithNesterovAndWeightDecay",
                            stepped_by<optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))},
                    ZooCase{"Adagrad",
                            stepped_by<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.01))},
                    ZooCase{"AdamWithAmsgradAndWeightDecay",
                            stepped_by<optim::Adam>(AdamOptions(0.01).amsgrad(true).weight_decay(0.01))},
                    ZooCase{"CenteredRmsprop",
                            stepped_by<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true).momentum(0.5))},
                    ZooCase{"AdamWWithLearningRatesPerParameterGroupInsideOneShardedGroup",
                            stepped(with_a_learning_rate_each, shard_as_one_group)}),
    name_of_case);

// The means track the rows of the parameters, and replace them for an evaluation.
TEST(ZooSteps, AMeanOfPastRowsIsThatOfTheUnshardedModelsParameters) {
  expect_same_sharded<ScaledNet>(
      [](ScaledNet& net, const Role& role) {
        const auto means = copies_of(net.parameters());
        for (int step = 0; step < 3; ++step) {
          descend(net.parameters(), [&](int) { return learn(net, role, step); }, /*steps=*/1);
          const torch::NoGradGuard no_grad;
          for (size_t i = 0; i < means.size(); ++i) means[i].mul_(0.9).add_(net.parameters()[i], 0.1);
        }
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < means.size(); ++i) net.parameters()[i].copy_(means[i]);
        return Values{scoped_loss(net, role, 3)};
      },
      shard_first_then_root);
}

// A rank without rows of a parameter does not write to it. Such a write must not be counted as a step of all ranks.
TEST(ZooSteps, AnUpdateByHandThatSkipsEmptyRowsEqualsTheUnshardedRun) {
  auto program = program_of<nn::LinearImpl>([](nn::LinearImpl& net, const Role& role) {
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      learn(net, role, step);
      torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters())
        if (parameter.grad().defined() && parameter.numel() > 0) parameter.sub_(0.1 * parameter.grad());
    }
    return Values{};
  });
  program.build = [] { return std::make_shared<nn::LinearImpl>(4, 1); };
  expect_equals_unsharded(program);
}

TEST(ZooSteps, OptimizerMadeBeforeShardingIsAsGoodAsOneMadeAfter) {
  const auto run = [](ScaledNet& net, const Role& role) {
    optim::Adam optimizer(net.parameters(), 0.01);
    if (role.is_sharded()) shard_first_then_root(net, {});
    return descend_by(optimizer, [&](int step) { return learn(net, role, step); });
  };
  expect_same_sharded<ScaledNet>(run, [](nn::Module&, const FullyShardOptions&) {});
}

}  // namespace
}  // namespace fsdp::test
