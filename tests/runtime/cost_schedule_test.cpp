// What a user says of when groups are gathered, seen in the gathers. Over shared memory there are none.

#include <gmock/gmock.h>

#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// `body` gets the net, its group and what was gathered since the last call of the latter.
using GatheredSince = std::function<std::vector<std::string>()>;

void on_two_ranks(const FullyShardOptions& options,
                  const std::function<void(SmallNetImpl&, const Group&, const GatheredSince&)>& body) {
  auto models = nets(2);
  Recorded recorded(2);
  recorded.options.backend = "gloo";
  run_thread_ranks(
      2,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        const auto group = shard_blocks(net, options);
        recorded.clear(r);
        body(net, group, [&recorded, r] {
          auto subjects = recorded.subjects(r, "all_gather");
          recorded.clear(r);
          return subjects;
        });
      },
      recorded.options);
}

TEST(CostOfASchedule, AGroupThatWasReshardedByHandIsGatheredAgainInBackward) {
  on_two_ranks({.reshard_after_forward = Reshard::never()},
               [](SmallNetImpl& net, const Group& group, const GatheredSince& gathered) {
                 auto loss = forward_loss(group, net, 0);
                 EXPECT_EQ(gathered().size(), kDepth + 1);
                 group_of(*net.blocks[1]).reshard();
                 loss.backward();
                 EXPECT_THAT(gathered(), ElementsAre("blocks.1"));
               });
}

TEST(CostOfASchedule, ReshardAfterForwardMayBeSetBetweenStepsForOneGroupOrAll) {
  on_two_ranks({.reshard_after_forward = Reshard::always()},
               [](SmallNetImpl& net, const Group& group, const GatheredSince& gathered) {
                 const auto gathers_in_backward = [&] {
                   auto loss = forward_loss(group, net, 0);
                   gathered();
                   loss.backward();
                   return gathered().size();
                 };
                 // Forward leaves the last block.
                 EXPECT_EQ(gathers_in_backward(), kDepth - 1);
                 group_of(*net.blocks[0]).set_reshard_after_forward(false);
                 EXPECT_EQ(gathers_in_backward(), kDepth - 2);
                 group.set_reshard_after_forward(false);
                 EXPECT_EQ(gathers_in_backward(), 0);
                 group.set_reshard_after_forward(true);
                 EXPECT_EQ(gathers_in_backward(), kDepth - 1);
               });
}

TEST(CostOfASchedule, AForwardListIsGatheredWhileItsGroupIsUsed) {
  on_two_ranks({}, [](SmallNetImpl& net, const Group& group, const GatheredSince& gathered) {
    const auto block = [&](size_t number) { return group_of(*net.blocks[number]); };
    block(0).set_modules_to_forward_prefetch({block(1), block(2)});
    const torch::NoGradGuard no_grad;
    const ForwardScope scope(group);
    auto h = net.first(torch::ones({2, 5}));
    EXPECT_THAT(gathered(), ElementsAre("SmallNet"));
    h = net.blocks[0]->as<SmallBlock>()->forward(h);
    EXPECT_THAT(gathered(), ElementsAre("blocks.0", "blocks.1", "blocks.2"));
    h = net.blocks[1]->as<SmallBlock>()->forward(h);
    h = net.blocks[2]->as<SmallBlock>()->forward(h);
    EXPECT_THAT(gathered(), IsEmpty());
    net.blocks[3]->as<SmallBlock>()->forward(h);
    EXPECT_THAT(gathered(), ElementsAre("blocks.3"));
  });
}

TEST(CostOfASchedule, ABackwardListIsGatheredWhileItsGroupIsUsed) {
  on_two_ranks({}, [](SmallNetImpl& net, const Group& group, const GatheredSince& gathered) {
    const auto block = [&](size_t number) { return group_of(*net.blocks[number]); };
    block(3).set_modules_to_backward_prefetch({block(2), block(1)});
    block(2).set_modules_to_backward_prefetch({block(1), block(0)});
    block(1).set_modules_to_backward_prefetch({block(0)});
    std::vector<std::string> in_last_block;
    torch::Tensor loss;
    {
      const ForwardScope scope(group);
      auto h = torch::tanh(net.first(torch::ones({2, 5})));
      for (size_t number = 0; number < 3; ++number) h = net.blocks[number]->as<SmallBlock>()->forward(h);
      h.register_hook([&](const torch::Tensor&) { in_last_block = gathered(); });
      loss = net.head(net.blocks[3]->as<SmallBlock>()->forward(h)).sum();
    }
    for (const size_t number : {2, 3}) block(number).reshard();
    gathered();
    loss.backward();
    EXPECT_THAT(in_last_block, ElementsAre("blocks.3", "blocks.2", "blocks.1"));
    EXPECT_THAT(gathered(), ElementsAre("blocks.0"));
  });
}

TEST(CostOfASchedule, WhileAGroupAroundThemIsReadTheNextTwoAreGathered) {
  on_two_ranks({}, [](SmallNetImpl& net, const Group& group, const GatheredSince& gathered) {
    std::vector<std::string> in_first, in_head;
    const auto step = [&] {
      torch::Tensor loss;
      {
        const ForwardScope scope(group);
        auto h = torch::tanh(net.first(torch::ones({2, 5})));
        in_first = gathered();
        for (const auto& block : *net.blocks) h = block->as<SmallBlock>()->forward(h);
        h.register_hook([&](const torch::Tensor&) { in_head = gathered(); });
        loss = net.head(h).sum();
      }
      gathered();
      loss.backward();
      gathered();
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
  on_two_ranks({}, [](SmallNetImpl&, const Group&, const GatheredSince& gathered) {
    torch::nn::Sequential empty(torch::nn::Tanh{});
    const auto group = fully_shard(*empty);
    gathered();
    group.unshard().wait();
    group.reshard();
    EXPECT_THAT(gathered(), IsEmpty());
    EXPECT_EQ(group.stats().whole.peak, 0);
  });
}

}  // namespace
}  // namespace fsdp::test
