// Every way to share the work, on every mesh: training as the unsharded model, and to the same bits.

#include "strategies/micro_batches.h"

namespace fsdp::test::strategies {
namespace {

using torch::Tensor;

Training<SmallNetImpl> training_with(Strategy strategy, const Shape& shape) {
  auto training = small_net_training();
  training.shard = [=](SmallNetImpl& net) { return shard_blocks(net, options_for(strategy, shape)); };
  training.max_norm = 0.05;  // less than the first gradients'
  return training;
}

TEST(Strategies, TrainAsTheUnshardedModelOnEveryMesh) {
  for_each_strategy_and_shape([](Strategy strategy, const Shape& shape) {
    expect_training_equals_unsharded(training_with(strategy, shape), ranks_of(shape));
  });
}

// The other strategies train to the same bits, as the next test shows.
TEST(Strategies, TrainAsTheUnshardedModelInFloat32OnEveryMesh) {
  for (const auto& shape : kShapes) {
    auto training = training_with(Strategy::kFullShard, shape);
    in_float32(training);
    expect_training_equals_unsharded(training, ranks_of(shape));
  }
}

TEST(Strategies, TrainToTheSameBitsAsOneAnotherAndAgain) {
  for (const auto& shape : kShapes) {
    std::optional<Outcome> expected;
    for (const auto strategy : kStrategies) {
      SCOPED_TRACE(text_of(strategy, shape));
      auto training = training_with(strategy, shape);
      training.dtype = torch::kFloat;
      training.steps = 3;
      training.optimizer = [](auto parameters) {
        return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
      };
      if (!expected) expected = train_on_thread_ranks(training, ranks_of(shape));
      expect_same_bits(*expected, train_on_thread_ranks(training, ranks_of(shape)));
    }
  }
}

TEST(Strategies, AccumulateOverMicroBatchesOnEveryMesh) {
  for_each_strategy_and_shape([](Strategy strategy, const Shape& shape) {
    micro_batches::expect_micro_batches_equal_the_unsharded_run(
        {strategy, shape}, [](const Group& group, int micro) { group.set_requires_gradient_sync(micro == 2); });
  });
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

// What a step of two micro-batches costs over Gloo with 4 groups.
struct Counts {
  int64_t gathers, whole_after_backward, whole_after_step;
};

Counts counts_of(Strategy strategy) {
  Counts counts{};
  run_thread_ranks(2,
                   [&](int rank) {
                     const auto net = make_small_net();
                     const auto group = shard_blocks(*net, {.strategy = strategy});
                     auto optimizer = sgd(net->parameters());
                     for (int step = 0; step < 3; ++step) {
                       const auto gathers = group.stats().gathers;
                       for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
                         group.set_requires_gradient_sync(micro_batch == 1);
                         loss_of_rank(group, *net, step).backward();
                       }
                       const auto after_backward = group.stats().whole.current;
                       optimizer.step();
                       if (rank != 0) continue;
                       counts = {group.stats().gathers - gathers, after_backward, group.stats().whole.current};
                     }
                   },
                   {.backend = "gloo"});
  return counts;
}

TEST(Strategies, GatherAsOftenAndHoldAsLongAsTheySay) {
  const auto full = counts_of(Strategy::kFullShard), grad_op = counts_of(Strategy::kShardGradOp),
             state = counts_of(Strategy::kShardOptimizer), replicated = counts_of(Strategy::kReplicate);
  EXPECT_EQ(full.gathers, 2 * (4 + 2));  // backward finds the outermost group and the last one whole
  EXPECT_EQ(full.whole_after_backward, 0);
  EXPECT_EQ(grad_op.gathers, 4);
  EXPECT_GT(grad_op.whole_after_backward, 0);
  EXPECT_EQ(grad_op.whole_after_step, 0);
  EXPECT_EQ(state.gathers, 4);
  EXPECT_EQ(state.whole_after_backward, grad_op.whole_after_backward);
  EXPECT_EQ(state.whole_after_step, state.whole_after_backward);
  EXPECT_EQ(replicated.gathers, 0);
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
  run_thread_ranks(4,
                   [](int) {
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
                   },
                   {.backend = "gloo"});
}

TEST(Strategies, AreAdvisedOnByWhatWasMeasured) {
  run_thread_ranks(2, [](int rank) {
    const auto net = make_small_net();
    const auto group = shard_blocks(*net);
    EXPECT_THROW(advise(group), UsageError) << "before a forward";
    loss_of_rank(group, *net, 0).backward();
    const auto advice = advise(group, rank == 0 ? 0 : 1 << 30);
    EXPECT_EQ(advice.now, Strategy::kFullShard);
    EXPECT_EQ(advice.better, Strategy::kFullShard) << "rank 0 has nothing to spare";
    EXPECT_EQ(advice.spare_bytes, 0);
    EXPECT_GT(advice.bytes_now, 0);
    EXPECT_GT(advice.waiting_share, 0);
    EXPECT_LE(advice.waiting_share, 1);
    EXPECT_GT(advise(group).spare_bytes, 0);
  });
}

}  // namespace
}  // namespace fsdp::test::strategies
