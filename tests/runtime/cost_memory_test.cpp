// Tests of the peak of each class of bytes on a rank, against the bounds in docs/architecture.md.

#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

const CostOptions kWide{.dim = 64};

TEST(Cost, RightAfterShardingARankHoldsItsRowsOnly) {
  constexpr int64_t kLargestRow = 3 * 64 + 1, kAlignment = 64, kFloat = sizeof(float);
  on_cost_ranks(4, kWide, [](const CostRank& on) {
    const auto stats = on.group.stats();
    EXPECT_EQ(stats.whole.current, 0);
    EXPECT_EQ(stats.gradient.current, 0);
    const int64_t share = kFloat * stats.parameter_numel / 4;
    EXPECT_LE(stats.rows.current,
              share * 102 / 100 + (kDepth + 1) * kFloat * kLargestRow + kAlignment * std::ssize(on.net.parameters()));
  });
}

TEST(Cost, WholeParametersStayWithinTheRootAndTwoGroups) {
  on_cost_ranks(3, kWide, [](const CostRank& on) {
    for (int step = 0; step < 3; ++step) {
      on.group.reset_peak_stats();
      auto loss = on.forward(step);
      EXPECT_LE(on.group.stats().whole.peak, on.root + 2 * on.block) << "forward of step " << step;
      loss.backward();
      EXPECT_LE(on.group.stats().whole.peak, on.root + 2 * on.block) << "backward of step " << step;
      EXPECT_EQ(on.group.stats().whole.current, 0) << "after step " << step;
    }
  });
}

// A server may open its scope once and run many rounds in it.
TEST(Cost, LaterRoundsInOneScopeAreGatheredAheadWithinTheRootAndTwoGroups) {
  on_cost_ranks(2, {.dim = 64, .backend = "gloo"}, [](const CostRank& on) {
    torch::NoGradGuard no_grad;
    ForwardScope scope(on.group);
    for (int round = 0; round < 4; ++round) {
      on.clear();
      const auto expect_gathered_ahead = [&](int64_t i) {
        if (round < 2) return;
        EXPECT_EQ(on.recorded.subjects(on.rank, "all_gather").back(), c10::str("blocks.", i)) << "round " << round;
      };
      auto h = on.net.first(on.input(round));
      for (int64_t i = 0; i < kDepth; ++i) {
        h = on.block_at(i).forward(h);
        if (i + 1 < kDepth) expect_gathered_ahead(i + 1);
      }
      on.net.head(h);
      expect_gathered_ahead(0);
      EXPECT_LE(on.group.stats().whole.peak, on.root + 2 * on.block) << "round " << round;
    }
  });
}

// Expects a bound on a rank's gradients. The rank holds the gradients of its rows, of the root (which arrive first and
// last), of the block that computes and of two blocks that are being reduced. From the second step on it also holds
// `more` bytes.
void expect_gradients_within_three_groups(const CostRank& on, const std::function<void(int)>& step, int64_t more = 0) {
  for (int i = 0; i < 3; ++i) {
    on.group.reset_peak_stats();
    on.clear();
    step(i);
    const int64_t rows = on.group.stats().rows.current;
    EXPECT_LE(on.group.stats().gradient.peak, rows + (i == 0 ? 0 : more) + on.root + 3 * on.block) << "step " << i;
    EXPECT_GT(on.group.stats().gradient.peak, rows) << "step " << i;
    EXPECT_EQ(on.group.stats().gradient.current, rows) << "step " << i;
    EXPECT_EQ(on.count("reduce_scatter"), kDepth + 1) << "step " << i;
  }
}

TEST(Cost, WholeGradientsStayWithinTheRootAndThreeGroups) {
  on_cost_ranks(3, kWide, [](const CostRank& on) {
    expect_gradients_within_three_groups(on, [&](int step) {
      on.net.zero_grad();
      EXPECT_EQ(on.group.stats().gradient.current, 0);
      on.train(step);
    });
  });
}

TEST(Cost, GradientsThatAccumulateStayWithinTheirRowsTheRootAndThreeGroups) {
  on_cost_ranks(2, kWide, [](const CostRank& on) {
    const int64_t rows_of_two_groups = 2 * on.block / 2;
    expect_gradients_within_three_groups(on, [&](int step) { on.train(step); }, rows_of_two_groups);
  });
}

// Recomputes a block in backward, and runs a backward inside the outer one. Users may write such a Function themselves.
struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, SmallBlockImpl* block) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<int64_t>(block);
    return block->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode recording(true);
    auto* block = reinterpret_cast<SmallBlockImpl*>(context->saved_data["block"].toInt());
    torch::autograd::backward({block->forward(x)}, gradients);
    return {x.grad(), Tensor()};
  }
};

TEST(Cost, WholeGradientsOfRecomputedBlocksStayWithinTheRootAndThreeGroups) {
  on_cost_ranks(3, kWide, [](const CostRank& on) {
    expect_gradients_within_three_groups(on, [&](int step) {
      on.net.zero_grad();
      ForwardScope scope(on.group);
      auto h = torch::tanh(on.net.first(on.input(step)));
      for (int64_t i = 0; i < kDepth; ++i) h = RecomputedBlock::apply(h, &on.block_at(i));
      on.net.head(h).sum().backward();
    });
    for (const auto& parameter : on.net.parameters()) EXPECT_TRUE(parameter.grad().defined());
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
  constexpr int kWorld = 4;
  run_thread_ranks(kWorld, [&](int) {
    const auto net = build_alike([] { return std::make_shared<FrozenAndAdapted>(); });
    auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    in_scope(group, [&] { return net->adapter(net->frozen(torch::ones({2, 64}))).sum(); }).backward();
    constexpr int64_t kTrained = 8 * 64;
    EXPECT_EQ(net->adapter->weight.grad().numel(), kTrained / kWorld) << "evenly shared";
    EXPECT_EQ(group.stats().gradient.current, kTrained / kWorld * static_cast<int64_t>(sizeof(float)));
  });
}

// A frozen block expects no gradient, so backward frees it as soon as it reads another group.
TEST(Cost, FrozenBlocksAreFreedAsSoonAsBackwardGoesOn) {
  const auto freeze_all_but_the_first = [](SmallNetImpl& net) {
    for (size_t i = 1; i < kDepth; ++i)
      for (auto& parameter : net.blocks[i]->parameters()) parameter.set_requires_grad(false);
  };
  on_cost_ranks(2, {.dim = 64, .prepare = freeze_all_but_the_first}, [](const CostRank& on) {
    int64_t during_first_block = 0;
    on.block_at(0).in->weight.register_hook(
        [&](const Tensor&) { during_first_block = on.group.stats().whole.current; });
    for (int step = 0; step < 2; ++step) {
      on.group.reset_peak_stats();
      on.train(step);
      EXPECT_LE(on.group.stats().whole.peak, on.root + 2 * on.block) << "step " << step;
      EXPECT_EQ(during_first_block, gathers(on.root + on.block)) << "step " << step;
      EXPECT_EQ(on.group.stats().whole.current, 0) << "after step " << step;
    }
  });
}

TEST(Cost, LowPrecisionTakesHalfTheBytesBesideTheSameRows) {
  const auto measure = [](int) {
    std::array<int64_t, 2> rows{}, whole{}, gradient{};
    for (const bool is_low : {false, true}) {
      const auto net = build_alike([] { return std::make_shared<torch::nn::LinearImpl>(64, 64); });
      FullyShardOptions options;
      if (is_low) options.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16};
      auto model = fully_shard(torch::nn::Linear(net), options);
      model.reset_peak_stats();
      model(torch::ones({2, 64})).sum().backward();
      whole[is_low] = model.stats().whole.peak;
      gradient[is_low] = model.stats().gradient.peak;
      rows[is_low] = model.stats().rows.current;
    }
    EXPECT_EQ(rows[0], rows[1]);
    EXPECT_EQ(whole[0], 2 * whole[1]);
    EXPECT_LT(gradient[1], gradient[0]);
  };
  run_thread_ranks(2, measure, {.backend = "gloo"});
}

TEST(Cost, EvaluationLeavesNothingWhole) {
  on_cost_ranks(2, [](const CostRank& on) {
    torch::NoGradGuard no_grad;
    for (int step = 0; step < 2; ++step) on.forward(step);
    EXPECT_EQ(on.group.stats().whole.current, 0);
  });
}

}  // namespace
}  // namespace fsdp::test
