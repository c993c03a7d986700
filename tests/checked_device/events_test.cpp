// On the checked device: micro-batches, gathers that follow an event of the optimizer's, whole parameters on the host.

#include <c10/core/Event.h>
#include <gmock/gmock.h>

#include "support/axes.h"
#include "checked_device/training.h"

namespace fsdp::test::checked {
namespace {

class CheckedMicroBatches : public CheckedDevice {};
class CheckedEvents : public CheckedDevice {};
class CheckedSummon : public CheckedDevice {};

DeviceTraining<SmallNetImpl> small_net_over_both_axes() {
  auto training = small_net();
  training.shard = [](SmallNetImpl& net) {
    const auto placement = placement_over({2, 2});
    for (auto& block : *net.blocks) shard_over(placement, module_tree(*block), {});
    return shard_over(placement, module_tree(net), {});
  };
  return training;
}

// What the rank's current stream has been given.
c10::Event recorded_on(int rank) {
  c10::Event event(kType);
  event.record(c10::impl::VirtualGuardImpl(kType).getStream(device(rank)));
  return event;
}

TEST_F(CheckedEvents, GathersThatFollowTheOptimizersEventAreOrdered) {
  const auto set_event = [](const Group& group, int rank) { group.set_post_optim_event(recorded_on(rank)); };
  for (int world : worlds_up_to(3)) {
    expect_steps_are_ordered(small_net({.reshard_after_forward = Reshard::always()}), world, set_event);
    expect_steps_are_ordered(even_net(), world, set_event);
  }
  expect_steps_are_ordered(small_net_over_both_axes(), 4, set_event);
}

// They come after the event, not after what the stream was given since: here that is the step itself.
TEST_F(CheckedEvents, GathersWaitForNothingThatFollowsTheOptimizersEvent) {
  const auto training = even_net();
  on_ranks(training, 2, [&](EvenNetImpl& net, const Group& group, int rank) {
    auto optimizer = training.optimizer(net.parameters());
    const Batch batch{0, rank * training.samples_per_rank, training.samples_per_rank};
    const auto x = training.inputs(batch).to(device(rank)), y = training.targets(batch).to(device(rank));
    run_step(training, net, group, *optimizer, x, y);
    auto too_early = recorded_on(rank);
    run_step(training, net, group, *optimizer, x, y);
    alone(rank, [] { EXPECT_THAT(take_violations(), testing::IsEmpty()); });
    group.set_post_optim_event(std::move(too_early));
    const torch::NoGradGuard no_grad;
    const ForwardScope scope(group);
    net.forward(x);
  });
  const auto found = violations();
  EXPECT_THAT(found, testing::Contains(testing::Field(&Violation::text, testing::HasSubstr("in 'optimizer'"))));
  for (const auto& violation : found) EXPECT_EQ(violation.fault, Fault::kUnordered) << violation.text;
}

TEST_F(CheckedEvents, AWriteEndsTheOptimizersEvent) {
  const auto training = even_net();
  on_ranks(training, 2, [&](EvenNetImpl& net, const Group& group, int rank) {
    auto optimizer = training.optimizer(net.parameters());
    const Batch batch{0, rank * training.samples_per_rank, training.samples_per_rank};
    const auto x = training.inputs(batch).to(device(rank)), y = training.targets(batch).to(device(rank));
    for (int step = 0; step < 3; ++step) {
      if (step == 0) group.set_post_optim_event(recorded_on(rank));
      run_step(training, net, group, *optimizer, x, y);
    }
  });
}

TEST_F(CheckedEvents, AnOptimizersEventIsOneThatWasRecordedOnTheDevice) {
  on_ranks(small_net(), 1, [&](SmallNetImpl&, const Group& group, int) {
    const auto message_of = [&](c10::Event event) {
      try {
        group.set_post_optim_event(std::move(event));
      } catch (const UsageError& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string("no error");
    };
    EXPECT_THAT(message_of(c10::Event(kType)),
                testing::AllOf(testing::HasSubstr("set_post_optim_event"), testing::HasSubstr("not recorded")));
    EXPECT_THAT(message_of(c10::Event(c10::kCPU)), testing::HasSubstr("found one of cpu"));
  });
  run_thread_ranks(2, [](int) {  // on the CPU nothing is queued
    auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto group = shard_blocks(*net);
    group.set_post_optim_event(c10::Event(c10::kCPU));
    const ForwardScope scope(group);
    EXPECT_EQ(net->forward(torch::ones({2, 5})).size(1), 3);
  });
}

TEST_F(CheckedSummon, ParametersMayLieInHostMemory) {
  for (int world : worlds_up_to(3))
    for (const bool rank0_only : {false, true}) {
      const auto training = small_net();
      on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
        std::vector<torch::Tensor> values;
        for (const auto& parameter : net.parameters()) values.push_back(full_tensor(parameter).cpu());
        {
          auto whole = summon_full_params(group, {.rank0_only = rank0_only, .offload_to_cpu = true});
          const bool keeps = !rank0_only || rank == 0;
          const torch::NoGradGuard no_grad;
          for (size_t i = 0; i < values.size(); ++i) {
            auto parameter = net.parameters()[i];
            EXPECT_EQ(parameter.device(), keeps ? c10::Device(c10::kCPU) : device(rank));
            if (keeps) {
              EXPECT_TRUE(torch::equal(parameter, values[i])) << i;
              parameter.mul_(2);
            }
          }
          if (!rank0_only) whole.write_back();
        }
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_EQ(net.parameters()[i].device(), device(rank));
          EXPECT_TRUE(torch::equal(full_tensor(net.parameters()[i]).cpu(), rank0_only ? values[i] : values[i] * 2));
        }
        auto optimizer = training.optimizer(net.parameters());
        const Batch batch{0, rank * training.samples_per_rank, training.samples_per_rank};
        run_step(training, net, group, *optimizer, training.inputs(batch).to(device(rank)),
                 training.targets(batch).to(device(rank)));
      });
    }
}

// What is kept of the micro-batches within the replica, and reductions that outlive their backward.
TEST_F(CheckedMicroBatches, OverBothAxesAreOrdered) {
  const auto training = small_net_over_both_axes();
  on_ranks(training, 4, [&](SmallNetImpl& net, const Group& group, int rank) {
    auto optimizer = training.optimizer(net.parameters());
    for (int step = 0; step < 9; ++step) {
      group.set_requires_all_reduce(step % 3 == 2);
      group.set_is_last_backward(step % 3 == 2);
      const Batch batch{step, rank * training.samples_per_rank, training.samples_per_rank};
      torch::Tensor loss;
      {
        ForwardScope scope(group);
        loss = training.loss_of(net, training.inputs(batch).to(device(rank)), training.targets(batch).to(device(rank)));
      }
      loss.backward();
      if (step % 3 != 2) continue;
      optimizer->step();
      optimizer->zero_grad();
    }
  });
}

}  // namespace
}  // namespace fsdp::test::checked
