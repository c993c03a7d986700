// What a rank holds at most, by class of bytes: the bounds of docs/architecture.md.

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

TEST(Cost, RightAfterShardingARankHoldsItsRowsOnly) {
  constexpr int64_t kDim = 64, kLargestRow = 3 * kDim + 1, kAlignment = 64, kFloat = sizeof(float);
  auto models = nets(4, kDim);
  run_thread_ranks(4, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    auto group = shard_blocks(net);
    const auto stats = group.stats();
    EXPECT_EQ(stats.whole.current, 0);
    EXPECT_EQ(stats.gradient.current, 0);
    const int64_t share = kFloat * stats.parameter_numel / 4, groups = std::ssize(param_groups(group));
    EXPECT_LE(stats.rows.current,
              share * 102 / 100 + groups * kFloat * kLargestRow + kAlignment * std::ssize(net.parameters()));
  });
}

// Bytes of the group's whole buffers.
int64_t whole_bytes(runtime::ParamGroup& group) {
  int64_t bytes = 0;
  for (const auto& flat : group.flats()) bytes += static_cast<int64_t>(flat.whole().bytes());
  return bytes;
}

TEST(Cost, WholeParametersStayWithinTheRootAndTwoGroups) {
  for (int world : {2, 3}) {
    auto models = nets(world, 64);
    run_thread_ranks(world, [&](int r) {
      auto& net = *models[static_cast<size_t>(r)];
      auto group = shard_blocks(net);
      int64_t block = whole_bytes(*param_groups(group)[1]), root = whole_bytes(*param_groups(group)[0]);
      for (int step = 0; step < 3; ++step) {
        group.reset_peak_stats();
        auto loss = forward_loss(group, net, step);
        EXPECT_LE(group.stats().whole.peak, root + 2 * block) << "forward of step " << step;
        loss.backward();
        EXPECT_LE(group.stats().whole.peak, root + 2 * block) << "backward of step " << step;
        EXPECT_EQ(group.stats().whole.current, 0) << "after step " << step;
      }
    });
  }
}

// Such as of a server, which opens its scope once.
TEST(Cost, LaterRoundsInOneScopeAreGatheredAheadWithinTheRootAndTwoGroups) {
  auto models = nets(2, 64);
  Recorded recorded(2);
  recorded.options.backend = "gloo";  // elsewhere nothing is gathered
  run_thread_ranks(
      2,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        auto group = shard_blocks(net);
        const int64_t block = whole_bytes(*param_groups(group)[1]), root = whole_bytes(*param_groups(group)[0]);
        torch::NoGradGuard no_grad;
        ForwardScope scope(group);
        for (int round = 0; round < 5; ++round) {
          recorded.clear(r);
          auto h = net.first(samples({round, r, 1}, {5}, torch::kFloat));
          const auto expect_gathered_ahead = [&](int i) {
            if (round < 2) return;
            EXPECT_EQ(recorded.subjects(r, "all_gather").back(), c10::str("blocks.", i)) << "round " << round;
          };
          for (int i = 0; i < kDepth; ++i) {
            h = net.blocks[static_cast<size_t>(i)]->as<SmallBlock>()->forward(h);
            if (i + 1 < kDepth) expect_gathered_ahead(i + 1);
          }
          net.head(h);
          expect_gathered_ahead(0);
          EXPECT_LE(group.stats().whole.peak, root + 2 * block) << "round " << round;
        }
      },
      recorded.options);
}

// Beside the rows' gradients: the root's, which arrive first and last, those of the block that computes and of two that
// are being reduced.
TEST(Cost, WholeGradientsStayWithinTheRootAndThreeGroups) {
  for (int world : {2, 3}) {
    auto models = nets(world, 64);
    run_thread_ranks(world, [&](int r) {
      auto& net = *models[static_cast<size_t>(r)];
      auto group = shard_blocks(net);
      const int64_t block = whole_bytes(*param_groups(group)[1]), root = whole_bytes(*param_groups(group)[0]);
      for (int step = 0; step < 3; ++step) {
        net.zero_grad();
        group.reset_peak_stats();
        forward_loss(group, net, step).backward();
        EXPECT_LE(group.stats().gradient.peak, group.stats().rows.current + root + 3 * block) << "step " << step;
        EXPECT_GT(group.stats().gradient.peak, group.stats().rows.current) << "step " << step;
      }
    });
  }
}

// Runs a block again in backward, with a backward of its own inside the outer one, as activation checkpointing does.
struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, int64_t block) {
    context->save_for_backward({x});
    context->saved_data["block"] = block;
    return reinterpret_cast<SmallBlockImpl*>(block)->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode recording(true);
    auto* block = reinterpret_cast<SmallBlockImpl*>(context->saved_data["block"].toInt());
    torch::autograd::backward({block->forward(x)}, gradients);
    return {x.grad(), torch::Tensor()};
  }
};

TEST(Cost, WholeGradientsOfRecomputedBlocksStayWithinTheRootAndThreeGroups) {
  for (int world : {2, 3}) {
    auto models = nets(world, 64);
    Recorded recorded(world);
    run_thread_ranks(
        world,
        [&](int r) {
          auto& net = *models[static_cast<size_t>(r)];
          auto group = shard_blocks(net);
          const int64_t block = whole_bytes(*param_groups(group)[1]), root = whole_bytes(*param_groups(group)[0]);
          for (int step = 0; step < 3; ++step) {
            net.zero_grad();
            group.reset_peak_stats();
            recorded.clear(r);
            {
              ForwardScope scope(group);
              auto h = torch::tanh(net.first(samples({step, r, 1}, {5}, torch::kFloat)));
              for (auto& each : *net.blocks)
                h = RecomputedBlock::apply(h, reinterpret_cast<int64_t>(each->as<SmallBlock>()));
              net.head(h).sum().backward();
            }
            EXPECT_LE(group.stats().gradient.peak, group.stats().rows.current + root + 3 * block) << "step " << step;
            EXPECT_EQ(recorded.count(r, "reduce_scatter"), kDepth + 1) << "step " << step;
            for (const auto& parameter : net.parameters()) EXPECT_TRUE(parameter.grad().defined());
          }
        },
        recorded.options);
  }
}

TEST(Cost, GradientsThatAccumulateStayWithinTheirRowsTheRootAndThreeGroups) {
  auto models = nets(2, 64);
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    auto group = shard_blocks(net);
    const int64_t block = whole_bytes(*param_groups(group)[1]), root = whole_bytes(*param_groups(group)[0]);
    for (int backward = 0; backward < 4; ++backward) {
      group.reset_peak_stats();
      forward_loss(group, net, backward).backward();
      const int64_t rows = group.stats().rows.current;
      EXPECT_EQ(group.stats().gradient.current, rows);
      const int64_t added = backward == 0 ? 0 : 2 * block / 2;  // the rows of two groups, on 2 ranks
      EXPECT_LE(group.stats().gradient.peak, rows + added + root + 3 * block) << "backward " << backward;
    }
  });
}

struct FrozenAndAdapted : torch::nn::Module {
  torch::nn::Linear frozen{torch::nn::LinearOptions(64, 64).bias(false)},
      adapter{torch::nn::LinearOptions(64, 8).bias(false)};
  FrozenAndAdapted() {
    register_module("adapter", adapter);
    register_module("frozen", frozen)->weight.set_requires_grad(false);
  }
};

TEST(Cost, AFrozenParametersGradientIsNeitherHeldNorReduced) {
  for (int world : {2, 4}) {
    std::vector<std::shared_ptr<FrozenAndAdapted>> models;
    for (int r = 0; r < world; ++r) models.push_back(build_alike([] { return std::make_shared<FrozenAndAdapted>(); }));
    run_thread_ranks(world, [&](int r) {
      auto& net = *models[static_cast<size_t>(r)];
      auto group = fully_shard(static_cast<torch::nn::Module&>(net));
      {
        ForwardScope scope(group);
        net.adapter(net.frozen(torch::ones({2, 64}))).sum().backward();
      }
      constexpr int64_t kTrained = 8 * 64;
      EXPECT_EQ(net.adapter->weight.grad().numel(), kTrained / world) << "evenly shared";
      EXPECT_EQ(group.stats().gradient.current, kTrained / world * static_cast<int64_t>(sizeof(float)));
    });
  }
}

// Frozen blocks expect no gradient, so backward frees them as soon as it goes on.
TEST(Cost, FrozenBlocksAreFreedAsSoonAsBackwardGoesOn) {
  auto models = nets(2, 64);
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    for (size_t i = 1; i < kDepth; ++i)
      for (auto& parameter : net.blocks[i]->parameters()) parameter.set_requires_grad(false);
    auto group = shard_blocks(net);
    int64_t block = whole_bytes(*param_groups(group)[1]), root = whole_bytes(*param_groups(group)[0]);
    int64_t during_first_block = 0;
    net.blocks[0]->as<SmallBlock>()->in->weight.register_hook(
        [&](const torch::Tensor&) { during_first_block = group.stats().whole.current; });
    for (int step = 0; step < 3; ++step) {
      group.reset_peak_stats();
      forward_loss(group, net, step).backward();
      EXPECT_LE(group.stats().whole.peak, root + 2 * block) << "step " << step;
      EXPECT_EQ(during_first_block, gathers(root + block)) << "step " << step;
      EXPECT_EQ(group.stats().whole.current, 0) << "after step " << step;
    }
  });
}

TEST(Cost, GradientsAreRowsAfterBackward) {
  auto models = nets(2, 64);
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    auto group = shard_blocks(net);
    forward_loss(group, net, 0).backward();
    EXPECT_EQ(group.stats().gradient.current, group.stats().rows.current);
    net.zero_grad();
    EXPECT_EQ(group.stats().gradient.current, 0);
  });
}

TEST(Cost, EvaluationLeavesNothingWhole) {
  auto models = nets(2);
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    auto group = shard_blocks(net);
    torch::NoGradGuard no_grad;
    for (int step = 0; step < 3; ++step) forward_loss(group, net, step);
    EXPECT_EQ(group.stats().whole.current, 0);
  });
}

}  // namespace
}  // namespace fsdp::test
