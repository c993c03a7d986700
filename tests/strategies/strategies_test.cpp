// Tests that a model trains like the unsharded one with every strategy, on every mesh, and which runs give equal bits.

#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using torch::Tensor;

Training<SmallNetImpl> training_with(Strategy strategy, const Shape& shape) {
  auto training = small_net_training();
  training.shard = [=](SmallNetImpl& net) { return shard_blocks(net, options_for(strategy, shape)); };
  training.max_norm = 0.05;  // less than the norm of the first gradients
  training.steps = 3;
  return training;
}

TEST(Strategies, TrainAsTheUnshardedModelOnEveryMesh) {
  for (const auto& shape : kShapes)
    for (const auto strategy : kStrategies) {
      SCOPED_TRACE(text_of(strategy, shape));
      expect_training_equals_unsharded(training_with(strategy, shape), ranks_of(shape));
    }
}

TEST(Strategies, TrainToTheSameBitsAsOneAnotherAndAgain) {
  for (const auto& shape : kShapes) {
    std::optional<Outcome> expected;
    for (const auto strategy : kStrategies) {
      SCOPED_TRACE(text_of(strategy, shape));
      auto training = training_with(strategy, shape);
      training.dtype = torch::kFloat;
      training.optimizer = [](auto parameters) {
        return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
      };
      if (!expected) expected = train_on_thread_ranks(training, ranks_of(shape));
      expect_same_bits(*expected, train_on_thread_ranks(training, ranks_of(shape)));
    }
  }
}

TEST(Strategies, OfGroupsOfOneModelMayDifferAndSoMayTheirMeshes) {
  auto training = small_net_training();
  training.max_norm = 0.05;
  training.shard = [](SmallNetImpl& net) {
    fully_shard(*net.blocks[0], options_for(Strategy::kShardGradOp, {2, 2}));
    fully_shard(*net.blocks[1], options_for(Strategy::kReplicate, {}));
    fully_shard(*net.blocks[2], options_for(Strategy::kFullShard, {2, 2}));
    return fully_shard(static_cast<torch::nn::Module&>(net), options_for(Strategy::kFullShard, {}));
  };
  expect_training_equals_unsharded(training, 4);
}

// The test measures the third step of two micro-batches over Gloo, with 4 groups.
TEST(Strategies, GatherAsOftenAndHoldAsLongAsTheySay) {
  struct Case {
    Strategy strategy;
    int64_t gathers;
    bool holds_after_backward, holds_after_step;
  };
  for (const auto& [strategy, gathers, holds_after_backward, holds_after_step] :
       {Case{Strategy::kFullShard, 2 * (4 + 2), false, false},  // backward finds the root and the last group whole
        Case{Strategy::kShardGradOp, 4, true, false}, Case{Strategy::kShardOptimizer, 4, true, true},
        Case{Strategy::kReplicate, 0, false, false}}) {
    SCOPED_TRACE(strategy);
    GroupStats before, backward, after;
    const auto run = [&, strategy = strategy](int rank) {
      const auto net = make_small_net();
      const auto group = shard_blocks(*net, {.strategy = strategy});
      auto optimizer = sgd(net->parameters());
      for (int step = 0; step < 3; ++step) {
        if (rank == 0) before = group.stats();
        for (const bool is_last : {false, true}) {
          group.set_requires_gradient_sync(is_last);
          loss_of_rank(group, *net, step).backward();
        }
        if (rank == 0) backward = group.stats();
        optimizer.step();
        if (rank == 0) after = group.stats();
      }
    };
    run_thread_ranks(2, run, {.backend = "gloo"});
    EXPECT_EQ(after.gathers - before.gathers, gathers);
    EXPECT_EQ(backward.whole.current > 0, holds_after_backward);
    EXPECT_EQ(after.whole.current > 0, holds_after_step);
  }
}

struct Counter : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({4})), count = register_buffer("count", torch::zeros({2}));
};

TEST(Buffers, AreThoseOfTheFirstRankWhereGradientsAreRecorded) {
  struct Case {
    const char* name;
    FullyShardOptions options;
    bool records, become_alike;
  };
  for (const Case& row : {Case{"replicate", {.strategy = Strategy::kReplicate}, true, true},
                          Case{"evaluation", {.strategy = Strategy::kReplicate}, false, false},
                          Case{"off", {.strategy = Strategy::kReplicate, .broadcast_buffers = false}, true, false},
                          Case{"shard", {}, true, false}, Case{"on", {.broadcast_buffers = true}, true, true}})
    run_thread_ranks(3, [&](int rank) {
      Counter net;
      net.count.fill_(rank + 1);
      const auto group = fully_shard(static_cast<torch::nn::Module&>(net), row.options);
      const torch::AutoGradMode mode(row.records);
      const ForwardScope scope(group);
      EXPECT_TRUE(net.count.equal(torch::full({2}, row.become_alike ? 1.0 : rank + 1.0))) << row.name << net.count;
    });
}

TEST(Buffers, MayBeHeldByTheGraphOfAnEarlierForward) {
  run_thread_ranks(2, [](int rank) {
    Counter net;
    net.count.fill_(rank + 1);
    const auto group = fully_shard(static_cast<torch::nn::Module&>(net), {.strategy = Strategy::kReplicate});
    std::vector<Tensor> losses;
    for (int forward = 0; forward < 2; ++forward) {
      const ForwardScope scope(group);
      losses.push_back((net.weight.sum() * net.count).sum());
    }
    (losses[0] + losses[1]).backward();
    EXPECT_TRUE(full_grad(net.weight).equal(torch::full({4}, 4.0)));
  });
}

TEST(ReshardWithin, TrainsAsTheUnshardedModelOnBothMeshes) {
  for (const auto& shape : {Shape{}, Shape{2, 4}}) {
    auto training = small_net_training();
    training.build = [] { return std::make_shared<SmallNetImpl>(11, 2); };
    training.steps = 2;
    training.shard = [=](SmallNetImpl& net) {
      return shard_blocks(net, options_for(Strategy::kFullShard, shape, {.reshard_after_forward = Reshard::within(2)}));
    };
    expect_training_equals_unsharded(training, shape.empty() ? 4 : 8);
  }
}

TEST(ReshardWithin, GathersInBackwardFromASecondShardAmongNeighbours) {
  const auto run = [](int) {
    const auto net = make_small_net(16, 4);
    const auto group = shard_blocks(*net, {.reshard_after_forward = Reshard::within(2)});
    auto optimizer = sgd(net->parameters());
    for (int step = 0; step < 3; ++step) {
      const auto before = group.stats();
      const auto loss = loss_of_rank(group, *net, step);
      const auto forward = group.stats();
      EXPECT_EQ(forward.gathers - before.gathers, 5);
      EXPECT_EQ(forward.gathers_within, before.gathers_within) << "forward gathers rows";
      loss.backward();
      const auto backward = group.stats();
      EXPECT_EQ(backward.gathers_within - forward.gathers_within, backward.gathers - forward.gathers);
      EXPECT_GE(backward.gathers_within - forward.gathers_within, 3);
      EXPECT_EQ(backward.whole.current, 0) << "second shards go";
      optimizer.step();
      optimizer.zero_grad();
    }
    const torch::NoGradGuard no_grad;
    loss_of_rank(group, *net, 9);
    EXPECT_EQ(group.stats().whole.current, 0) << "an evaluation keeps none";
  };
  run_thread_ranks(4, run, {.backend = "gloo"});
}

}  // namespace
}  // namespace fsdp::test::strategies
