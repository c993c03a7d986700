// torch::optim's element-wise optimizers on model->parameters() as they are.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

struct OptimizersNet : nn::Module {
  nn::Linear in{4, 6}, out{6, 3};
  torch::Tensor scale;
  OptimizersNet() {
    register_module("in", in);
    register_module("out", out);
    scale = register_parameter("scale", torch::tensor(1.5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::sigmoid(in->forward(x))) * scale; }
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(OptimizersNet&)>;

Program<OptimizersNet> program_with(const MakeOptimizer& make) {
  Program<OptimizersNet> program;
  program.build = [] { return std::make_shared<OptimizersNet>(); };
  program.shard = [](OptimizersNet& net, const FullyShardOptions& options) {
    fully_shard(*net.in, options);
    fully_shard(static_cast<nn::Module&>(net), options);
  };
  program.run = [make](OptimizersNet& net, const Role& role) {
    auto optimizer = make(net);
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      auto batch = role.batch(step);
      auto loss = role.whole(net, [&] { return distance_from_targets(net.forward(samples(batch, {4})), batch); });
      loss.backward();
      optimizer->step();
      losses.push_back(loss.detach());
    }
    return losses;
  };
  return program;
}

// Copies of the rows follow them, and take their place for an evaluation: a mean of past values of every parameter.
TEST(ZooOptimizers, AMeanOfPastRowsIsThatOfTheUnshardedModelsParameters) {
  auto program = program_with([](OptimizersNet& net) { return std::make_unique<optim::SGD>(net.parameters(), 0.1); });
  program.run = [](OptimizersNet& net, const Role& role) {
    optim::SGD optimizer(net.parameters(), 0.1);
    std::vector<torch::Tensor> means;
    for (const auto& parameter : net.parameters()) means.push_back(parameter.detach().clone());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const auto batch = role.batch(step);
      role.whole(net, [&] { return distance_from_targets(net.forward(samples(batch, {4})), batch); }).backward();
      optimizer.step();
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < means.size(); ++i) means[i].mul_(0.9).add_(net.parameters()[i], 0.1);
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < means.size(); ++i) net.parameters()[i].copy_(means[i]);
    const auto batch = role.batch(3);
    return Values{role.whole(net, [&] { return distance_from_targets(net.forward(samples(batch, {4})), batch); })};
  };
  expect_equals_unsharded(program, {1, 3});
}

template <class Optimizer, class Options>
void expect_optimizer_equals_unsharded(Options options) {
  auto program =
      program_with([=](OptimizersNet& net) { return std::make_unique<Optimizer>(net.parameters(), options); });
  expect_equals_unsharded(program, worlds_up_to(3));
}

TEST(ZooOptimizers, SgdWithMomentumNesterovAndWeightDecayEqualsTheUnshardedRun) {
  expect_optimizer_equals_unsharded<optim::SGD>(optim::SGDOptions(0.1));
  expect_optimizer_equals_unsharded<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).dampening(0.1));
  expect_optimizer_equals_unsharded<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
}

TEST(ZooOptimizers, AdagradEqualsTheUnshardedRun) {
  expect_optimizer_equals_unsharded<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.01));
}

TEST(ZooOptimizers, AdamAndAmsgradEqualTheUnshardedRun) {
  expect_optimizer_equals_unsharded<optim::Adam>(optim::AdamOptions(0.01));
  expect_optimizer_equals_unsharded<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.01));
}

TEST(ZooOptimizers, AdamWEqualsTheUnshardedRun) {
  expect_optimizer_equals_unsharded<optim::AdamW>(optim::AdamWOptions(0.01).weight_decay(0.1));
  expect_optimizer_equals_unsharded<optim::AdamW>(optim::AdamWOptions(0.01).amsgrad(true));
}

TEST(ZooOptimizers, CenteredRmspropEqualsTheUnshardedRun) {
  expect_optimizer_equals_unsharded<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
}

TEST(ZooOptimizers, LearningRatesPerParameterGroupInsideOneShardedGroupEqualTheUnshardedRun) {
  auto program = program_with([](OptimizersNet& net) {
    std::vector<torch::Tensor> decayed{net.in->weight, net.out->weight}, others{net.in->bias, net.out->bias, net.scale};
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(decayed, std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(0.02).weight_decay(0.1)));
    groups.emplace_back(others, std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(0.005).weight_decay(0.0)));
    return std::make_unique<optim::AdamW>(groups);
  });
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program);
}

// A rank without rows of a parameter makes no write to it, which is no step that only some ranks make.
TEST(ZooOptimizers, AnUpdateByHandThatSkipsEmptyRowsEqualsTheUnshardedRun) {
  Program<torch::nn::LinearImpl> program;
  program.build = [] { return std::make_shared<torch::nn::LinearImpl>(4, 1); };
  program.shard = [](torch::nn::LinearImpl& net, const FullyShardOptions& options) {
    shard_as_one_group(net, options);
  };
  program.run = [](torch::nn::LinearImpl& net, const Role& role) {
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      const auto batch = role.batch(step);
      role.whole(net, [&] { return distance_from_targets(net.forward(samples(batch, {4})), batch); }).backward();
      torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters())
        if (parameter.grad().defined() && parameter.numel() > 0) parameter.sub_(0.1 * parameter.grad());
    }
    return Values{};
  };
  expect_equals_unsharded(program);
}

TEST(ZooOptimizers, OptimizerMadeBeforeShardingIsAsGoodAsOneMadeAfter) {
  for (int world : worlds_up_to(2)) {
    auto program =
        program_with([](OptimizersNet& net) { return std::make_unique<optim::Adam>(net.parameters(), 0.01); });
    auto shard = program.shard;
    program.shard = [](OptimizersNet&, const FullyShardOptions&) {};
    program.run = [=](OptimizersNet& net, const Role& role) {
      auto optimizer = std::make_unique<optim::Adam>(net.parameters(), 0.01);
      if (role.is_sharded()) shard(net, {});
      for (int step = 0; step < 4; ++step) {
        optimizer->zero_grad();
        auto batch = role.batch(step);
        role.whole(net, [&] { return distance_from_targets(net.forward(samples(batch, {4})), batch); }).backward();
        optimizer->step();
      }
      return Values{};
    };
    expect_equals_unsharded(program, {world});
  }
}

}  // namespace
}  // namespace fsdp::test
