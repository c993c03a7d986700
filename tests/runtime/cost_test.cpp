// What a step costs: collectives, and operators that come to the library.

#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

TEST(Cost, CollectivesOfAStepWithReshard) {
  for (int world : worlds_up_to(3)) {
    auto models = nets(world);
    Recorded recorded(world);
    run_thread_ranks(
        world,
        [&](int r) {
          auto& net = *models[static_cast<size_t>(r)];
          auto group = shard_blocks(net);
          for (int step = 0; step < 3; ++step) {
            recorded.clear(r);
            auto loss = forward_loss(group, net, step);
            EXPECT_EQ(recorded.count(r, "all_gather"), world == 1 ? 0 : gathers(kDepth + 1)) << "step " << step;
            if (test_backend() == "shm" && world > 1) {
              EXPECT_EQ(recorded.count(r, "barrier"), 1) << "step " << step;
            }
            recorded.clear(r);
            loss.backward();
            if (world == 1) continue;
            EXPECT_LE(recorded.count(r, "all_gather"), gathers(kDepth)) << "step " << step;
            EXPECT_EQ(recorded.count(r, "barrier"), 0) << "step " << step;
            EXPECT_EQ(recorded.count(r, "reduce_scatter"), kDepth + 1) << "step " << step;
          }
        },
        recorded.options);
  }
}

TEST(Cost, NoCollectivesAtWorldSizeOne) {
  auto models = nets(1);
  Recorded recorded(1);
  run_thread_ranks(
      1,
      [&](int r) {
        auto group = shard_blocks(*models[0]);
        recorded.clear(r);
        forward_loss(group, *models[0], 0).backward();
        EXPECT_THAT(recorded.subjects(0, "all_gather"), testing::IsEmpty());
        EXPECT_EQ(group.stats().whole.peak, 0);
      },
      recorded.options);
}

TEST(Cost, ReshardNeverGathersOncePerGroup) {
  auto models = nets(2);
  Recorded recorded(2);
  run_thread_ranks(
      2,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        FullyShardOptions options;
        options.reshard_after_forward = Reshard::never();
        auto group = shard_blocks(net, options);
        recorded.clear(r);
        forward_loss(group, net, 0).backward();
        EXPECT_EQ(recorded.count(r, "all_gather"), gathers(kDepth + 1));
        EXPECT_EQ(recorded.count(r, "reduce_scatter"), kDepth + 1);
      },
      recorded.options);
}

TEST(Cost, ReductionsRunInTheReverseOrderOfFirstReads) {
  auto models = nets(2);
  Recorded recorded(2);
  run_thread_ranks(
      2,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        auto group = shard_blocks(net);
        recorded.clear(r);
        forward_loss(group, net, 0).backward();
        const std::vector<std::string> expected{"blocks.3", "blocks.2", "blocks.1", "blocks.0", "SmallNet"};
        EXPECT_EQ(recorded.subjects(r, "reduce_scatter"), expected);
      },
      recorded.options);
}

// The last block's norm might be computed again, but is not.
TEST(Cost, AGroupWithAParameterThatWasReadUnrecordedHoldsUpNoOthers) {
  auto models = nets(2);
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    auto group = shard_blocks(net);
    int64_t reductions = 0;
    ForwardScope scope(group);
    auto h = torch::tanh(net.first(samples({0, r, 1}, {5}, torch::kFloat)));
    h.register_hook([&](const torch::Tensor&) { reductions = group.stats().reductions; });
    for (size_t i = 0; i + 1 < kDepth; ++i) h = net.blocks[i]->as<SmallBlock>()->forward(h);
    auto& last = *net.blocks[kDepth - 1]->as<SmallBlock>();
    torch::Tensor unrecorded;
    {
      const torch::NoGradGuard not_recording;
      unrecorded = last.norm(h);
    }
    net.head(h + last.out(torch::gelu(last.in(unrecorded)))).sum().backward();
    EXPECT_EQ(reductions, kDepth);
    EXPECT_FALSE(last.norm->weight.grad().defined());
    EXPECT_TRUE(last.in->weight.grad().defined());
  });
}

TEST(Cost, OperatorsThatTouchNoParameterNeverEnterTheLibrary) {
  auto models = nets(1);
  run_thread_ranks(1, [&](int) {
    auto group = shard_blocks(*models[0]);
    auto before = group.stats().intercepted_operators;
    auto x = torch::ones({4, 4}, torch::requires_grad());
    torch::softmax(torch::matmul(x, x).relu(), -1).sum().backward();
    EXPECT_EQ(group.stats().intercepted_operators, before);
    forward_loss(group, *models[0], 0);
    EXPECT_GT(group.stats().intercepted_operators, before);
  });
}

TEST(Cost, KeptCopiesSpareGathersUntilRowsAreWritten) {
  auto models = nets(2);
  Recorded recorded(2);
  run_thread_ranks(
      2,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        auto group = shard_blocks(net);
        torch::optim::SGD optimizer(net.parameters(), 0.1);
        group.set_reshard_after_forward(false);
        group.set_reshard_after_backward(false);
        forward_loss(group, net, 0).backward();
        recorded.clear(r);
        forward_loss(group, net, 1).backward();
        EXPECT_EQ(recorded.count(r, "all_gather"), 0);
        optimizer.step();
        recorded.clear(r);
        forward_loss(group, net, 2).backward();
        EXPECT_EQ(recorded.count(r, "all_gather"), gathers(kDepth + 1));
      },
      recorded.options);
}

// Raw pointers are seen by nobody, so the rows count as written when a LocalRows closes.
TEST(Cost, CopiesThatWereAskedForAreRenewedAfterLocalRows) {
  auto models = nets(2);
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    auto group = shard_blocks(net);
    group.set_reshard_after_backward(false);
    group_of(*net.blocks[2]).unshard().wait();
    auto before = forward_loss(group, net, 0);
    {
      LocalRows rows(group);
      for (auto& parameter : net.parameters()) std::fill_n(parameter.data_ptr<float>(), parameter.numel(), 0.0F);
    }
    torch::NoGradGuard no_grad;
    ForwardScope scope(group);
    for (auto& parameter : net.parameters()) EXPECT_EQ(parameter.abs().max().item<float>(), 0);
  });
}

TEST(Cost, UnshardBringsMemoryEarly) {
  auto models = nets(2);
  Recorded recorded(2);
  run_thread_ranks(
      2,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        auto group = shard_blocks(net);
        group_of(*net.blocks[2]).unshard().wait();
        recorded.clear(r);
        auto loss = forward_loss(group, net, 0);
        EXPECT_EQ(recorded.count(r, "all_gather"), gathers(kDepth));
        loss.backward();
        group_of(*net.blocks[2]).reshard();
        EXPECT_EQ(group.stats().whole.current, 0);
      },
      recorded.options);
}

}  // namespace
}  // namespace fsdp::test
