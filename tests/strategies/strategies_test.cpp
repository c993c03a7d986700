// Every way to share the work, on every mesh: training as the unsharded model, and to the same bits.

#include <gmock/gmock.h>

#include "support/recording_communicator.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer,
                                    Strategy::kReplicate};

// The sizes of "replicate" and "shard"; none: no mesh.
using Shape = std::vector<int>;
const std::vector<Shape> kShapes{{}, {2, 2}, {1, 4}, {4, 1}};

int ranks_of(const Shape& shape) { return shape.empty() ? 3 : shape[0] * shape[1]; }

std::string text_of(Strategy strategy, const Shape& shape) {
  return c10::str(strategy, " over ", shape.empty() ? "3 ranks" : c10::Join(" x ", shape));
}

// Collective.
FullyShardOptions options_for(Strategy strategy, const Shape& shape) {
  FullyShardOptions options{.strategy = strategy};
  if (!shape.empty()) options.mesh = init_device_mesh(shape, {"replicate", "shard"});
  return options;
}

Training<SmallNetImpl> training_with(Strategy strategy, const Shape& shape) {
  auto training = small_net_training();
  training.shard = [=](SmallNetImpl& net) { return shard_blocks(net, options_for(strategy, shape)); };
  training.steps = 10;
  training.max_norm = 0.05;  // less than the first gradients'
  return training;
}

template <class Act>
void for_each_strategy_and_shape(const Act& act) {
  for (const auto& shape : kShapes)
    for (const auto strategy : kStrategies) {
      SCOPED_TRACE(text_of(strategy, shape));
      act(strategy, shape);
    }
}

TEST(Strategies, TrainAsTheUnshardedModelOnEveryMesh) {
  for_each_strategy_and_shape([](Strategy strategy, const Shape& shape) {
    expect_training_equals_unsharded(training_with(strategy, shape), ranks_of(shape));
  });
}

TEST(Strategies, TrainAsTheUnshardedModelInFloat32OnEveryMesh) {
  for_each_strategy_and_shape([](Strategy strategy, const Shape& shape) {
    auto training = training_with(strategy, shape);
    in_float32(training);
    expect_training_equals_unsharded(training, ranks_of(shape));
  });
}

TEST(Strategies, TrainToTheSameBitsAsOneAnotherAndAgain) {
  for (const auto& shape : kShapes) {
    std::optional<Outcome> expected;
    for (const auto strategy : kStrategies) {
      SCOPED_TRACE(text_of(strategy, shape));
      auto training = training_with(strategy, shape);
      training.dtype = torch::kFloat;
      training.steps = 5;
      training.optimizer = [](auto parameters) {
        return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
      };
      const auto found = train_on_thread_ranks(training, ranks_of(shape));
      if (!expected) expected = found;
      expect_same_bits(*expected, found);
      expect_same_bits(found, train_on_thread_ranks(training, ranks_of(shape)));
    }
  }
}

TEST(Strategies, AccumulateOverMicroBatchesOnEveryMesh) {
  for_each_strategy_and_shape([](Strategy strategy, const Shape& shape) {
    Program<SmallNetImpl> program;
    program.build = [] { return std::make_shared<SmallNetImpl>(); };
    program.shard = [&](SmallNetImpl& net, const FullyShardOptions&) {
      shard_blocks(net, options_for(strategy, shape));
    };
    program.run = [](SmallNetImpl& net, const Role& role) {
      auto optimizer = sgd(net.parameters());
      Values losses;
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          if (role.is_sharded()) group_of(net).set_requires_gradient_sync(micro_batch == 1);
          const auto loss =
              role.whole(net, [&] { return small_net_loss(net, role.batch(2 * step + micro_batch)) / 2; });
          loss.backward();
          losses.push_back(loss.detach());
        }
        optimizer.step();
      }
      return losses;
    };
    expect_equals_unsharded(program, {ranks_of(shape)});
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

// Per step, over Gloo: 4 groups.
struct Counts {
  int64_t gathers, whole_after_backward, whole_after_step;
};

TEST(Strategies, GatherAsOftenAndHoldAsLongAsTheySay) {
  const auto counts_of = [](Strategy strategy) {
    Counts counts{};
    run_thread_ranks(2,
                     [&](int rank) {
                       auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
                       const auto group = shard_blocks(*net, {.strategy = strategy});
                       auto optimizer = sgd(net->parameters());
                       for (int step = 0; step < 3; ++step) {
                         const auto gathers = group.stats().gathers;
                         for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
                           group.set_requires_gradient_sync(micro_batch == 1);
                           ForwardScope scope(group);
                           auto loss = small_net_loss(*net, {step, rank * 2, 2});
                           scope.close();
                           loss.backward();
                         }
                         const auto after_backward = group.stats().whole.current;
                         optimizer.step();
                         if (rank != 0) continue;
                         counts = {group.stats().gathers - gathers, after_backward, group.stats().whole.current};
                       }
                     },
                     {.backend = "gloo"});
    return counts;
  };
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
  const auto counted = [](const FullyShardOptions& options, bool records) {
    int64_t alike = 0;
    run_thread_ranks(3, [&](int rank) {
      Counter net;
      net.count.fill_(rank + 1);
      const auto group = fully_shard(static_cast<torch::nn::Module&>(net), options);
      const torch::AutoGradMode mode(records);
      const ForwardScope scope(group);
      if (rank == 2) alike = net.count.equal(torch::ones({2})) ? 1 : 0;
    });
    return alike == 1;
  };
  EXPECT_TRUE(counted({.strategy = Strategy::kReplicate}, true));
  EXPECT_FALSE(counted({.strategy = Strategy::kReplicate}, false)) << "an evaluation";
  EXPECT_FALSE(counted({.strategy = Strategy::kReplicate, .broadcast_buffers = false}, true));
  EXPECT_FALSE(counted({}, true));
  EXPECT_TRUE(counted({.broadcast_buffers = true}, true));
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
    training.shard = [=](SmallNetImpl& net) {
      auto options = options_for(Strategy::kFullShard, shape);
      options.reshard_after_forward = Reshard::within(2);
      return shard_blocks(net, options);
    };
    expect_training_equals_unsharded(training, shape.empty() ? 4 : 8);
  }
}

TEST(ReshardWithin, GathersInBackwardFromASecondShardAmongNeighbours) {
  run_thread_ranks(4,
                   [](int rank) {
                     auto net = build_alike([] { return std::make_shared<SmallNetImpl>(16, 4); });
                     const auto group = shard_blocks(*net, {.reshard_after_forward = Reshard::within(2)});
                     auto optimizer = sgd(net->parameters());
                     for (int step = 0; step < 3; ++step) {
                       const auto before = group.stats();
                       Tensor loss;
                       {
                         const ForwardScope scope(group);
                         loss = small_net_loss(*net, {step, rank * 2, 2});
                       }
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
                     {
                       const torch::NoGradGuard no_grad;
                       const auto before = group.stats().whole.current;
                       const ForwardScope scope(group);
                       small_net_loss(*net, {9, rank * 2, 2});
                       EXPECT_EQ(before, 0);
                     }
                     EXPECT_EQ(group.stats().whole.current, 0) << "an evaluation keeps none";
                   },
                   {.backend = "gloo"});
}

TEST(Strategies, AreAdvisedOnByWhatWasMeasured) {
  run_thread_ranks(2, [](int rank) {
    auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto group = shard_blocks(*net);
    EXPECT_THROW(advise(group), UsageError) << "before a forward";
    {
      const ForwardScope scope(group);
      small_net_loss(*net, {0, rank * 2, 2}).backward();
    }
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

TEST(Strategies, ThatReplicateGiveAGradientEverywhereToWhatSomeRanksUsed) {
  run_thread_ranks(3, [](int rank) {
    auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto group = shard_blocks(*net, {.strategy = Strategy::kReplicate});
    for (auto& block : *net->blocks) group_of(*block).set_reduce_scatter_unused_params(true);
    Tensor loss;
    {
      ForwardScope scope(group);
      auto h = torch::tanh(net->first->forward(torch::ones({1, 5})));
      if (rank == 1) h = net->blocks[0]->as<SmallBlock>()->forward(h);
      loss = net->head->forward(h).sum();
    }
    loss.backward();
    const auto used = full_grad(net->blocks[0]->as<SmallBlock>()->out->bias);
    EXPECT_GT(used.defined() ? used.abs().sum().item<double>() : 0, 0);
    EXPECT_FALSE(net->blocks[1]->as<SmallBlock>()->out->bias.grad().defined());
    EXPECT_TRUE(net->head->weight.grad().defined());
  });
}

}  // namespace
}  // namespace fsdp::test
