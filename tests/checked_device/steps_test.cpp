// Tests that steps on the checked device equal those of the unsharded model on the CPU, without a violation. With rows
// on the device the host never waits. With rows in host memory it waits once per step, at the end of backward, for the
// copies of all gradients.

#include "checked_device/training.h"

namespace fsdp::test::checked {
namespace {

class CheckedTraining : public CheckedDevice {};

// Calls `expect(options, host_waits)`, once for rows on the device and once for rows in host memory.
template <class Expect>
void wherever_rows_lie(const FullyShardOptions& options, const Expect& expect) {
  for (const bool offloads : {false, true}) {
    SCOPED_TRACE(offloads ? "rows in host memory" : "rows on the device");
    expect(offloads ? on_host(options) : options, size_t{offloads});
  }
}

template <class Optimizer, class Options>
auto maker(const Options& options) {
  return [options](auto parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

// One rank exchanges nothing; with three ranks hardly any size divides evenly. From the third step on, steps use the
// memory of predicted gathers.
TEST_F(CheckedTraining, StepsOfABlockwiseNetAreOrderedHoweverLongWholeParametersStay) {
  const std::optional<Reshard> unset, always = Reshard::always();
  for (const auto& [reshard, world] : {std::pair(unset, 1), {unset, 3}, {always, 3}})
    wherever_rows_lie({.reshard_after_forward = reshard}, [&, world = world](const auto& options, size_t waits) {
      auto training = small_net(options, /*blocks=*/3);
      training.steps = 4;
      expect_steps_are_ordered(training, world, waits);
    });
}

TEST_F(CheckedTraining, StepsOfAnEvenNetOverTheBackendsOwnCollectivesAreOrdered) {
  wherever_rows_lie({},
                    [](const auto& options, size_t waits) { expect_steps_are_ordered(even_net(options), 3, waits); });
  expect_steps_are_ordered(even_net(), 2);
}

TEST_F(CheckedTraining, StepsOfEveryStrategyAreOrdered) {
  for (const auto strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
    wherever_rows_lie({.strategy = strategy, .bucket_cap_bytes = 300}, [](const auto& options, size_t waits) {
      expect_steps_are_ordered(small_net(options), waits > 0 ? 3 : 2, waits);
    });
  expect_steps_are_ordered(small_net(on_host({.strategy = Strategy::kReplicate})), 1, 1);
}

TEST_F(CheckedTraining, StepsOverBothAxesAndAmongNeighboursAreOrdered) {
  // Each param group has several buckets, and each replica has one rank.
  expect_steps_are_ordered(small_net_over({1, 2}, {.bucket_cap_bytes = 300}), 2);
  wherever_rows_lie({}, [&](const auto& options, size_t waits) {
    expect_steps_are_ordered(small_net_over({2, 2}, options), 4, waits);
  });
  auto even = even_net();
  even.shard = [](EvenNetImpl& net) { return shard_blocks_over(placement_over({2, 2}), net); };
  expect_steps_are_ordered(even, 4);
  expect_steps_are_ordered(small_net(on_host({.reshard_after_forward = Reshard::within(2)})), 4, 1);
}

TEST_F(CheckedTraining, StepsOfTheFusedOptimizersAreOrdered) {
  wherever_rows_lie({}, [](const auto& options, size_t waits) {
    auto training = small_net(options);
    training.optimizer = maker<optim::AdamW>(torch::optim::AdamWOptions(1e-2));
    expect_steps_are_ordered(training, 2, waits);
    training.optimizer = maker<optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
    expect_steps_are_ordered(training, 1, waits);
  });
}

TEST_F(CheckedTraining, StepsOfMixedPrecisionAreOrdered) {
  for (const auto& [reduce, world] :
       {std::pair(std::optional<at::ScalarType>(), 3), {torch::kFloat, 3}, {torch::kFloat, 1}}) {
    const MixedPrecisionPolicy policy{.param_dtype = torch::kBFloat16, .reduce_dtype = reduce};
    auto training = small_net({.mp_policy = policy});
    // Adam would turn a rounding error into a whole step.
    training.optimizer = maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
    training.tolerance = 0.1;  // tests on the CPU check the bits
    expect_steps_are_ordered(training, world);
  }
}

// No rank has to know whether another rank has a gradient of a frozen parameter.
TEST_F(CheckedTraining, StepsOfGroupsWithFrozenParametersAreOrderedAndTheHostWaitsForNothing) {
  auto training = small_net();
  training.build = [] {
    auto net = std::make_shared<SmallNetImpl>(11, 2);
    net->first->weight.set_requires_grad(false);
    for (const auto& item : net->named_parameters())
      if (item.key().ends_with("norm.weight")) item.value().set_requires_grad(false);
    return net;
  };
  expect_steps_are_ordered(training, 3);
}

TEST_F(CheckedTraining, GathersThatFollowTheOptimizersEventAreOrdered) {
  const auto set_event = [](const Group& group, int rank) {
    group.set_post_optim_event(recorded_on(current_stream_of(rank)));
  };
  expect_steps_are_ordered(small_net({.reshard_after_forward = Reshard::always()}), 3, 0, set_event);
  for (const int world : {1, 3}) expect_steps_are_ordered(small_net(on_host()), world, 1, set_event);
  expect_steps_are_ordered(even_net(), 3, 0, set_event);
  expect_steps_are_ordered(small_net_over({2, 2}), 4, 0, set_event);
}

TEST_F(CheckedOffload, SomeGroupsMayHaveTheirRowsOnTheHostAndOthersNot) {
  for (const bool is_root : {false, true}) {
    auto training = small_net();
    training.shard = [=](SmallNetImpl& net) {
      for (auto& block : *net.blocks) fully_shard(*block, is_root ? FullyShardOptions() : on_host());
      return fully_shard(static_cast<torch::nn::Module&>(net), is_root ? on_host() : FullyShardOptions());
    };
    expect_steps_are_ordered(training, 2, 1);
  }
}

// A model that was built on the CPU reaches the device from host memory, row by row.
TEST_F(CheckedOffload, AModelThatWasBuiltOnTheCPUComputesOnTheProcessGroupsDevice) {
  auto training = small_net(on_host());
  training.is_built_on_device = false;
  expect_steps_are_ordered(training, 2, 1);
}

// There are three param groups, each of which is gathered once and reduced once.
TEST_F(CheckedOffload, WithoutPinnedMemoryTheHostWaitsForEachCopy) {
  const auto options = on_host({.reshard_after_forward = Reshard::never()}, /*is_pinned=*/false);
  constexpr int kPlanes = 3;  // of each group
  expect_steps_are_ordered(small_net(options), 2, 6 * kPlanes);
}

// Layers that alternate between the caller's stream and another one. Their nodes run on the same streams in backward.
struct ForkedNetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  bool begins_aside = false;
  std::optional<c10::Stream> aside;
  ForkedNetImpl() {
    for (int i = 0; i < 4; ++i) blocks->push_back(torch::nn::Linear(5, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor sum = x.new_zeros({3});
    for (size_t i = 0; i < blocks->size(); ++i) sum = sum + run(*blocks[i]->as<torch::nn::Linear>(), x, i % 2 == 1);
    return sum;
  }
  torch::Tensor run(torch::nn::LinearImpl& layer, const torch::Tensor& x, bool is_odd) {
    if (x.is_cpu() || is_odd == begins_aside) return layer.forward(x);
    const auto own = streams().getStream(x.device());
    if (!aside) aside = streams().getNewStream(x.device(), 0);
    order(own, *aside);
    torch::Tensor result;
    {
      const c10::StreamGuard guard(*aside);
      result = layer.forward(x);
    }
    order(*aside, own);
    streams().recordDataPtrOnStream(x.storage().data_ptr(), *aside);
    streams().recordDataPtrOnStream(result.storage().data_ptr(), own);
    return result;
  }
};

DeviceTraining<ForkedNetImpl> forked_net(bool begins_aside, bool is_one_group) {
  const auto build = [=] {
    auto net = std::make_shared<ForkedNetImpl>();
    net->begins_aside = begins_aside;
    return net;
  };
  const auto shard = [=](ForkedNetImpl& net) {
    return is_one_group ? fully_shard(static_cast<torch::nn::Module&>(net)) : shard_all(net);
  };
  return device_training<ForkedNetImpl>(build, shard, 5, 3);
}

TEST_F(CheckedTraining, GradientsThatArriveOnTwoStreamsAreReducedAfterBoth) {
  for (const bool begins_aside : {false, true})
    for (const bool is_one_group : {false, true}) {
      SCOPED_TRACE(c10::str(begins_aside ? "reduced aside, " : "", is_one_group ? "one group" : "a group each"));
      expect_steps_are_ordered(forked_net(begins_aside, is_one_group), 2);
    }
}

TEST_F(CheckedTraining, GradientsThatAccumulateOnStreamsInTurnsAreOrdered) {
  const auto training = forked_net(/*begins_aside=*/false, /*is_one_group=*/true);
  for (const int world : {1, 3})
    on_ranks(training, world, [&](ForkedNetImpl& net, const Group& group, int) {
      const auto share = training.share_of();
      for (int step = 0; step < 6; ++step, net.begins_aside = !net.begins_aside) {
        group.set_requires_gradient_sync(step % 3 != 0);
        training.forward(net, group, share).backward();
      }
      EXPECT_GT(clip_grad_norm_(group, 1e-3), 0);
    });
}

// Covers gradients of micro-batches that are kept within a replica, and reductions that outlive their backward.
TEST_F(CheckedTraining, MicroBatchesOverBothAxesAreOrdered) {
  const auto training = small_net_over({2, 2});
  on_ranks(training, 4, [&](SmallNetImpl& net, const Group& group, int) {
    auto optimizer = training.optimizer(net.parameters());
    for (int step = 0; step < 6; ++step) {
      group.set_requires_all_reduce(step % 3 == 2);
      group.set_is_last_backward(step % 3 == 2);
      training.forward(net, group, training.share_of(step)).backward();
      if (step % 3 != 2) continue;
      optimizer->step();
      optimizer->zero_grad();
    }
  });
}

}  // namespace
}  // namespace fsdp::test::checked
