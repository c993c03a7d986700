// Tests of the settings with which users decide when groups are gathered. The tests look at gathers over Gloo, because
// ranks that share memory do not gather.

#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

void on_two_ranks(const FullyShardOptions& sharding, const std::function<void(const CostRank&)>& body) {
  on_cost_ranks(2, {.sharding = sharding, .backend = "gloo"}, body);
}

TEST(CostOfASchedule, AGroupThatWasReshardedByHandIsGatheredAgainInBackward) {
  on_two_ranks({.reshard_after_forward = Reshard::never()}, [](const CostRank& on) {
    auto loss = on.forward(0);
    EXPECT_EQ(on.gathered().size(), kDepth + 1);
    on.group_at(1).reshard();
    loss.backward();
    EXPECT_THAT(on.gathered(), ElementsAre("blocks.1"));
  });
}

TEST(CostOfASchedule, ReshardAfterForwardMayBeSetBetweenStepsForOneGroupOrAll) {
  on_two_ranks({.reshard_after_forward = Reshard::always()}, [](const CostRank& on) {
    const auto gathers_in_backward = [&] {
      auto loss = on.forward(0);
      on.clear();
      loss.backward();
      return on.gathered().size();
    };
    EXPECT_EQ(gathers_in_backward(), kDepth - 1) << "forward leaves the last block";
    on.group_at(0).set_reshard_after_forward(false);
    EXPECT_EQ(gathers_in_backward(), kDepth - 2);
    on.group.set_reshard_after_forward(false);
    EXPECT_EQ(gathers_in_backward(), 0);
    on.group.set_reshard_after_forward(true);
    EXPECT_EQ(gathers_in_backward(), kDepth - 1);
  });
}

TEST(CostOfASchedule, AForwardListIsGatheredWhileItsGroupIsUsed) {
  on_two_ranks({}, [](const CostRank& on) {
    on.group_at(0).set_modules_to_forward_prefetch({on.group_at(1), on.group_at(2)});
    const torch::NoGradGuard no_grad;
    const ForwardScope scope(on.group);
    auto h = on.net.first(torch::ones({2, 5}));
    EXPECT_THAT(on.gathered(), ElementsAre("SmallNet"));
    h = on.block_at(0).forward(h);
    EXPECT_THAT(on.gathered(), ElementsAre("blocks.0", "blocks.1", "blocks.2"));
    h = on.block_at(2).forward(on.block_at(1).forward(h));
    EXPECT_THAT(on.gathered(), IsEmpty());
    on.block_at(3).forward(h);
    EXPECT_THAT(on.gathered(), ElementsAre("blocks.3"));
  });
}

TEST(CostOfASchedule, ABackwardListIsGatheredWhileItsGroupIsUsed) {
  on_two_ranks({}, [](const CostRank& on) {
    on.group_at(3).set_modules_to_backward_prefetch({on.group_at(2), on.group_at(1)});
    on.group_at(2).set_modules_to_backward_prefetch({on.group_at(1), on.group_at(0)});
    on.group_at(1).set_modules_to_backward_prefetch({on.group_at(0)});
    std::vector<std::string> in_last_block;
    const auto loss = in_scope(on.group, [&] {
      auto h = torch::tanh(on.net.first(torch::ones({2, 5})));
      for (int64_t i = 0; i < 3; ++i) h = on.block_at(i).forward(h);
      h.register_hook([&](const torch::Tensor&) { in_last_block = on.gathered(); });
      return on.net.head(on.block_at(3).forward(h)).sum();
    });
    for (const int64_t i : {2, 3}) on.group_at(i).reshard();
    on.clear();
    loss.backward();
    EXPECT_THAT(in_last_block, ElementsAre("blocks.3", "blocks.2", "blocks.1"));
    EXPECT_THAT(on.gathered(), ElementsAre("blocks.0"));
  });
}

TEST(CostOfASchedule, WhileAGroupAroundThemIsReadTheNextTwoAreGathered) {
  on_two_ranks({}, [](const CostRank& on) {
    std::vector<std::string> in_first, in_head;
    const auto step = [&] {
      const auto loss = in_scope(on.group, [&] {
        auto h = torch::tanh(on.net.first(torch::ones({2, 5})));
        in_first = on.gathered();
        for (int64_t i = 0; i < kDepth; ++i) h = on.block_at(i).forward(h);
        h.register_hook([&](const torch::Tensor&) { in_head = on.gathered(); });
        return on.net.head(h).sum();
      });
      on.clear();
      loss.backward();
      on.clear();
    };
    step();
    EXPECT_THAT(in_first, ElementsAre("SmallNet"));
    EXPECT_THAT(in_head, IsEmpty()) << "the last block is there, and nothing is known yet of what follows it";
    step();
    EXPECT_THAT(in_first, ElementsAre("SmallNet", "blocks.0", "blocks.1"));
    EXPECT_THAT(in_head, ElementsAre("blocks.2"));
  });
}

TEST(CostOfASchedule, AGroupWithoutParametersIsUnshardedByNothing) {
  on_two_ranks({}, [](const CostRank& on) {
    torch::nn::Sequential empty(build_alike([] { return torch::nn::Linear(3, 4); }));
    fully_shard(*empty[0]);
    const auto group = fully_shard(*empty);
    on.clear();
    group.unshard().wait();
    group.reshard();
    EXPECT_THAT(on.gathered(), IsEmpty());
    EXPECT_EQ(group.stats().whole.peak, 0);
  });
}

TEST(GatheredAhead, IsWhatFitsIntoTheLimit) {
  int64_t numel = 0;
  for (const auto& parameter : SmallBlockImpl(12).parameters()) numel += parameter.numel();
  const int64_t bytes = numel * static_cast<int64_t>(sizeof(float));
  for (const int64_t blocks : {0, 2, 3}) {
    SCOPED_TRACE(c10::str("room for ", blocks, " blocks"));
    const FullyShardOptions sharding{.reshard_after_forward = Reshard::always(),
                                     .max_prefetched_bytes = blocks * (bytes + bytes / 4)};
    on_two_ranks(sharding, [&](const CostRank& on) {
      for (int step = 0; step < 2; ++step) {
        on.clear();
        on.group.reset_peak_stats();
        const auto loss = in_scope(on.group, [&] {
          auto h = torch::tanh(on.net.first(on.input(step)));
          for (int64_t i = 0; i < kDepth; ++i) {
            h = on.block_at(i).forward(h);
            const auto last = std::min(kDepth - 1, i + (step == 0 ? 0 : blocks));
            EXPECT_EQ(on.recorded.subjects(on.rank, "all_gather").back(), c10::str("blocks.", last))
                << "after block " << i;
          }
          return on.net.head(h).square().mean();
        });
        loss.backward();
        EXPECT_LE(on.group.stats().whole.peak, on.root + (1 + blocks) * on.block);
        if (step > 0) {
          EXPECT_EQ(on.group.stats().whole.peak, on.root + (1 + blocks) * on.block);
        }
      }
    });
  }
}

TEST(GatheredAhead, WithinALimitTrainsAsTheUnshardedModelAndOfANegativeOneIsRefused) {
  FullyShardOptions options{.reshard_after_forward = Reshard::always(), .max_prefetched_bytes = 20'000};
  expect_training_equals_unsharded(small_net_training(options), 2);
  const auto refused = [] { run_thread_ranks(1, [](int) { fully_shard(SmallNet(), {.max_prefetched_bytes = -1}); }); };
  EXPECT_THAT(refused, testing::ThrowsMessage<UsageError>(
                           testing::HasSubstr("max_prefetched_bytes: expected 0 or more, found -1")));
}

}  // namespace
}  // namespace fsdp::test
