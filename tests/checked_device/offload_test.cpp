// Rows, gradients and optimizer state in host memory: equal to the unsharded model, ordered, and with one wait of the
// host in a step.

#include <c10/core/Event.h>

#include <mutex>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "support/axes.h"
#include "support/checked_device/host_memory.h"
#include "support/checked_device/timeline.h"
#include "checked_device/offload.h"

namespace fsdp::test::checked {
namespace {

template <class Optimizer, class Options>
auto maker(const Options& options) {
  return [options](auto parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

TEST_F(CheckedOffload, StepsAreOrderedAndTheHostWaitsOnceInEach) {
  for (const int world : worlds_up_to(3)) {
    expect_ordered(small_net(on_host()), world);
    expect_ordered(small_net(on_host({.reshard_after_forward = Reshard::always()})), world);
    expect_ordered(small_net(on_host({.reshard_after_forward = Reshard::never()})), world);
    expect_ordered(even_net(on_host()), world);
  }
}

TEST_F(CheckedOffload, StepsOfEveryStrategyAreOrdered) {
  for (const auto strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
    for (const int world : worlds_up_to(3))
      expect_ordered(small_net(on_host({.strategy = strategy, .bucket_cap_bytes = 300})), world);
}

TEST_F(CheckedOffload, StepsOverBothAxesAndAmongNeighboursAreOrdered) {
  for (const Axes axes : {Axes{1, 2}, Axes{2, 2}}) {
    auto training = small_net();
    training.shard = [=](SmallNetImpl& net) {
      const auto placement = placement_over(axes);
      for (auto& block : *net.blocks) shard_over(placement, module_tree(*block), on_host({.bucket_cap_bytes = 300}));
      return shard_over(placement, module_tree(net), on_host());
    };
    expect_ordered(training, axes.ranks());
  }
  expect_ordered(small_net(on_host({.reshard_after_forward = Reshard::within(2)})), 4);
}

TEST_F(CheckedOffload, StepsOfTheFusedOptimizersAreOrdered) {
  for (const int world : worlds_up_to(3)) {
    auto training = small_net(on_host());
    training.optimizer = maker<optim::AdamW>(torch::optim::AdamWOptions(1e-2));
    expect_ordered(training, world);
    training.optimizer = maker<optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
    expect_ordered(training, world);
  }
}

TEST_F(CheckedOffload, SomeGroupsMayHaveTheirRowsOnTheHostAndOthersNot) {
  for (const int world : worlds_up_to(3))
    for (const bool is_root : {false, true}) {
      auto training = small_net();
      training.shard = [=](SmallNetImpl& net) {
        for (auto& block : *net.blocks) fully_shard(*block, is_root ? FullyShardOptions() : on_host());
        return fully_shard(static_cast<torch::nn::Module&>(net), is_root ? on_host() : FullyShardOptions());
      };
      expect_ordered(training, world);
    }
}

// A model that was built on the CPU goes there from host memory, row by row.
TEST_F(CheckedOffload, AModelThatWasBuiltOnTheCPUComputesOnTheProcessGroupsDevice) {
  for (const int world : worlds_up_to(3)) {
    auto training = small_net(on_host());
    training.is_built_on_device = false;
    expect_ordered(training, world);
  }
}

TEST_F(CheckedOffload, GathersThatFollowTheOptimizersEventAreOrdered) {
  const auto set_event = [](const Group& group, int rank) {
    c10::Event event(kType);
    event.record(c10::impl::VirtualGuardImpl(kType).getStream(device(rank)));
    group.set_post_optim_event(std::move(event));
  };
  for (const int world : worlds_up_to(3)) expect_steps_are_ordered(small_net(on_host()), world, set_event, kWaits);
}

// So it goes on beside what the current stream computes.
TEST_F(CheckedOffload, ACopyToTheDeviceWaitsForNothingThatTheCurrentStreamWasGiven) {
  for (const int world : worlds_up_to(3)) {
    const auto training = small_net(on_host());
    on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
      auto optimizer = training.optimizer(net.parameters());
      const Batch batch{0, rank * training.samples_per_rank, training.samples_per_rank};
      run_step(training, net, group, *optimizer, training.inputs(batch).to(device(rank)),
               training.targets(batch).to(device(rank)));
      const auto own = c10::impl::VirtualGuardImpl(kType).getStream(device(rank));
      std::unique_lock lock(device_mutex());
      const Stamp computed = Timeline::get().launch(own);
      lock.unlock();
      auto whole = group.unshard();
      const auto stream = param_groups(group).front()->rank_state().gather_stream;
      lock.lock();
      ASSERT_TRUE(stream.has_value());
      EXPECT_NE(*stream, own);
      EXPECT_FALSE(Timeline::get().of(*stream).knows(computed));
      lock.unlock();
      whole.wait();
    });
  }
}

// Four groups, each gathered once and reduced once.
TEST_F(CheckedOffload, WithoutPinnedMemoryTheHostWaitsForEachCopy) {
  const auto options = on_host({.reshard_after_forward = Reshard::never()}, /*is_pinned=*/false);
  for (const int world : worlds_up_to(3)) expect_steps_are_ordered(small_net(options), world, {}, 8);
}

TEST_F(CheckedOffload, CountsBytesOfTheHost) {
  const auto training = small_net(on_host());
  on_ranks(training, 2, [&](SmallNetImpl& net, const Group& group, int rank) {
    const auto rows = group.stats().host.current;
    EXPECT_GE(rows, group.stats().rows_numel * 8);
    EXPECT_TRUE(net.head->weight.is_cpu());
    EXPECT_TRUE(HostMemory::get().is_pinned(param_groups(group).front()->flats().front().rows().buffer->data()));
    optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    const Batch batch{0, 0, 2};
    run_step(training, net, group, optimizer, training.inputs(batch).to(device(rank)),
             training.targets(batch).to(device(rank)));
    EXPECT_TRUE(net.head->weight.grad().is_cpu());
    EXPECT_GT(group.stats().host.current, 7 * rows / 2);
    EXPECT_EQ(group.stats().rows.current, 0);
    EXPECT_EQ(group.stats().gradient.current, 0);
    EXPECT_EQ(group.stats().optimizer.current, 0);
    EXPECT_EQ(group.stats().whole.current, 0);
  });
}

}  // namespace
}  // namespace fsdp::test::checked
