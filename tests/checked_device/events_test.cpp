// Tests, on the checked device, of gathers that wait for the optimizer's event, and of whole parameters on the host.

#include "api/group_view.h"
#include "checked_device/training.h"
#include "runtime/param_group.h"
#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {
namespace {

using testing::HasSubstr;

class CheckedEvents : public CheckedDevice {};
class CheckedSummon : public CheckedDevice {};

// Gathers wait for the event, and not for later work of the stream. Here the step itself is later work.
TEST_F(CheckedEvents, GathersWaitForNothingThatFollowsTheOptimizersEvent) {
  const auto training = even_net();
  on_ranks(training, 2, [&](EvenNetImpl& net, const Group& group, int rank) {
    auto optimizer = training.optimizer(net.parameters());
    const auto share = training.share_of();
    run_step(training, net, group, *optimizer, share);
    auto too_early = recorded_on(current_stream_of(rank));
    run_step(training, net, group, *optimizer, share);
    alone(rank, [] { EXPECT_THAT(take_violations(), testing::IsEmpty()); });
    group.set_post_optim_event(std::move(too_early));
    const torch::NoGradGuard no_grad;
    const ForwardScope scope(group);
    net.forward(share.x);
  });
  const auto found = violations();
  EXPECT_THAT(found, testing::Contains(testing::Field(&Violation::text, HasSubstr("in 'optimizer'"))));
  for (const auto& violation : found) EXPECT_EQ(violation.fault, Fault::kUnordered) << violation.text;
}

TEST_F(CheckedEvents, AWriteEndsTheOptimizersEvent) {
  const auto training = even_net();
  on_ranks(training, 2, [&](EvenNetImpl& net, const Group& group, int rank) {
    auto optimizer = training.optimizer(net.parameters());
    for (int step = 0; step < 3; ++step) {
      if (step == 0) group.set_post_optim_event(recorded_on(current_stream_of(rank)));
      run_step(training, net, group, *optimizer, training.share_of());
    }
  });
}

TEST_F(CheckedEvents, AnOptimizersEventIsOneThatWasRecordedOnTheDevice) {
  on_ranks(small_net(), 1, [&](SmallNetImpl&, const Group& group, int) {
    EXPECT_THAT([&] { group.set_post_optim_event(c10::Event(kType)); },
                testing::ThrowsMessage<UsageError>(
                    testing::AllOf(HasSubstr("set_post_optim_event"), HasSubstr("not recorded"))));
    EXPECT_THAT([&] { group.set_post_optim_event(c10::Event(c10::kCPU)); },
                testing::ThrowsMessage<UsageError>(HasSubstr("found a cpu event")));
  });
  run_thread_ranks(2, [](int) {  // on the CPU, nothing is queued
    auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto group = shard_blocks(*net);
    group.set_post_optim_event(c10::Event(c10::kCPU));
    const ForwardScope scope(group);
    EXPECT_EQ(net->forward(torch::ones({2, 5})).size(1), 3);
  });
}

// The copy runs at the same time as what the current stream computes.
TEST_F(CheckedOffload, ACopyToTheDeviceWaitsForNothingThatTheCurrentStreamWasGiven) {
  const auto training = small_net(on_host());
  for (const int world : {1, 3})
    on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
      auto optimizer = training.optimizer(net.parameters());
      run_step(training, net, group, *optimizer, training.share_of());
      const auto own = current_stream_of(rank);
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

TEST_F(CheckedSummon, ParametersAreWrittenBackOrShownOnOneRank) {
  const auto training = small_net();
  for (const auto& [world, rank0_only] : {std::pair(1, false), {3, false}, {3, true}})
    on_ranks(training, world, [&, rank0_only = rank0_only](SmallNetImpl& net, const Group& group, int rank) {
      std::vector<torch::Tensor> values;
      for (const auto& parameter : net.parameters()) values.push_back(full_tensor(parameter).cpu());
      {
        auto whole = summon_full_params(group, {.rank0_only = rank0_only});
        const bool keeps = !rank0_only || rank == 0;
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < values.size(); ++i) {
          auto parameter = net.parameters()[i];
          if (!keeps) continue;
          EXPECT_TRUE(torch::equal(parameter.cpu(), values[i])) << i;
          parameter.mul_(2);
        }
        if (!rank0_only) whole.write_back();
      }
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(net.parameters()[i].device(), device(rank));
        EXPECT_TRUE(torch::equal(full_tensor(net.parameters()[i]).cpu(), rank0_only ? values[i] : values[i] * 2));
      }
      auto optimizer = training.optimizer(net.parameters());
      run_step(training, net, group, *optimizer, training.share_of());
    });
}

}  // namespace
}  // namespace fsdp::test::checked
