// The runtime on the checked device: equal to the unsharded model on the CPU, no violation, no wait of the host.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include <array>
#include <optional>

#include "runtime/reduction.h"
#include "support/axes.h"
#include "checked_device/training.h"

namespace fsdp::test::checked {
namespace {

class CheckedTraining : public CheckedDevice {};

// `then` comes after what `first` has been given.
void order(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(kType);
  event.record(first);
  event.block(then);
}

// Layers side by side, in turns on the caller's stream and on another one, on which their nodes run in backward too.
struct ForkedNetImpl : torch::nn::Module {
  torch::nn::ModuleList layers;
  bool begins_aside = false;
  std::optional<c10::Stream> aside;
  ForkedNetImpl() {
    register_module("layers", layers);
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(5, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor sum = x.new_zeros({3});
    for (size_t i = 0; i < layers->size(); ++i) sum = sum + run(*layers[i]->as<torch::nn::Linear>(), x, i % 2 == 1);
    return sum;
  }
  torch::Tensor run(torch::nn::LinearImpl& layer, const torch::Tensor& x, bool is_odd) {
    if (x.is_cpu() || is_odd == begins_aside) return layer.forward(x);
    const c10::impl::VirtualGuardImpl devices(kType);
    const auto own = devices.getStream(x.device());
    if (!aside) aside = devices.getNewStream(x.device(), 0);
    order(own, *aside);
    torch::Tensor result;
    {
      const c10::StreamGuard guard(*aside);
      result = layer.forward(x);
    }
    order(*aside, own);
    devices.recordDataPtrOnStream(x.storage().data_ptr(), *aside);
    devices.recordDataPtrOnStream(result.storage().data_ptr(), own);
    return result;
  }
};

DeviceTraining<ForkedNetImpl> forked_net(bool begins_aside, bool is_one_group) {
  DeviceTraining<ForkedNetImpl> training;
  training.build = [=] {
    auto net = std::make_shared<ForkedNetImpl>();
    net->begins_aside = begins_aside;
    return net;
  };
  training.shard = [=](ForkedNetImpl& net) {
    if (!is_one_group)
      for (auto& layer : *net.layers) fully_shard(*layer);
    return fully_shard(static_cast<torch::nn::Module&>(net));
  };
  training.inputs = [](const Batch& batch) { return samples(batch, {5}); };
  training.targets = [](const Batch& batch) { return samples(batch, {3}); };
  training.finish();
  return training;
}

TEST_F(CheckedTraining, StepsOfABlockwiseNetAreOrdered) {
  for (int world : worlds_up_to(3)) expect_steps_are_ordered(small_net(), world);
}

TEST_F(CheckedTraining, StepsThatReshardAlwaysAreOrdered) {
  for (int world : worlds_up_to(3))
    expect_steps_are_ordered(small_net({.reshard_after_forward = Reshard::always()}), world);
}

TEST_F(CheckedTraining, StepsThatReshardNeverAreOrdered) {
  for (int world : worlds_up_to(3))
    expect_steps_are_ordered(small_net({.reshard_after_forward = Reshard::never()}), world);
}

TEST_F(CheckedTraining, StepsOfAnEvenNetOverTheBackendsOwnCollectivesAreOrdered) {
  for (int world : worlds_up_to(3)) expect_steps_are_ordered(even_net(), world);
}

TEST_F(CheckedTraining, StepsOverBothAxesAreOrdered) {
  const FullyShardOptions small_buckets{.bucket_cap_bytes = 300};  // several of each group, with one rank a replica
  for (const Axes axes : {Axes{1, 2}, Axes{2, 2}}) {
    auto blocks = small_net();
    blocks.shard = [=](SmallNetImpl& net) {
      const auto placement = placement_over(axes);
      for (auto& block : *net.blocks) shard_over(placement, module_tree(*block), small_buckets);
      return shard_over(placement, module_tree(net), small_buckets);
    };
    expect_steps_are_ordered(blocks, axes.ranks());
    auto even = even_net();
    even.shard = [=](EvenNetImpl& net) {
      const auto placement = placement_over(axes);
      for (auto& layer : *net.layers) shard_over(placement, module_tree(*layer), small_buckets);
      return shard_over(placement, module_tree(net), small_buckets);
    };
    expect_steps_are_ordered(even, axes.ranks());
  }
}

TEST_F(CheckedTraining, ReductionsOverBothAxesThatAreDroppedKeepTheirTensorsUntilTheyAreOver) {
  run_ranks(4, [&](int rank) {
    const auto placement = placement_over({2, 2});
    const auto reduction = runtime::reduction_over(placement);
    for (int i = 0; i < 5; ++i) {
      const auto whole = torch::ones({64}, device(rank)), rows = torch::empty({32}, device(rank));
      static_cast<void>(reduction->start(rows, {{0, whole}}, std::array<int64_t, 3>{0, 32, 64}, 0.25, {"w", {1}}, {}));
    }
    placement.shard().reductions().barrier({})->wait();
    placement.further_steps().front()->barrier({})->wait();
  });
}

// Who reads the sum multiplies it: the stream that waited first would do so beside the others.
TEST_F(CheckedTraining, AReductionOverBothAxesIsReadOnTwoStreams) {
  run_ranks(2, [&](int rank) {
    const auto placement = placement_over({1, 2});
    const auto reduction = runtime::reduction_over(placement);
    const auto rows = torch::empty({64}, device(rank));
    const auto started = reduction->start(rows, {{0, torch::ones({64}, device(rank))}}, std::array<int64_t, 2>{0, 64},
                                          0.25, {"w", {1}}, {});
    started.work->wait();
    const auto own = c10::impl::VirtualGuardImpl(kType).getStream(device(rank));
    const auto side = c10::impl::VirtualGuardImpl(kType).getNewStream(device(rank), 0);
    {
      const c10::StreamGuard guard(side);
      started.work->wait();
      EXPECT_EQ(rows.mul(started.scale).sum().item<float>(), 32);
    }
    order(side, own);
  });
}

TEST_F(CheckedTraining, StepsOfTheFusedOptimizersAreOrdered) {
  for (int world : worlds_up_to(3)) {
    auto training = small_net();
    training.optimizer = [](auto parameters) {
      return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
    };
    expect_steps_are_ordered(training, world);
    training.optimizer = [](auto parameters) {
      return std::make_unique<optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
    };
    expect_steps_are_ordered(training, world);
  }
}

TEST_F(CheckedTraining, StepsOfMixedPrecisionAreOrdered) {
  for (const auto& policy : {MixedPrecisionPolicy{.param_dtype = torch::kBFloat16},
                             MixedPrecisionPolicy{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat}})
    for (int world : worlds_up_to(3)) {
      auto training = small_net({.mp_policy = policy});
      // Not Adam, which makes a whole step of a gradient's rounding.
      training.optimizer = [](auto parameters) {
        return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
      };
      training.tolerance = 0.1;  // that the bits are right is tested on the CPU
      expect_steps_are_ordered(training, world);
    }
}

// The host has to know whether to call the optimizer, which counts its steps there: one wait a step, and no other.
TEST_F(CheckedTraining, StepsWithAGradScalerMakeTheHostWaitOnce) {
  for (int world : worlds_up_to(3)) {
    const auto training = small_net({.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}});
    on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
      optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
      GradScaler scaler;
      const Batch batch{0, rank * 2, 2};
      const auto x = training.inputs(batch).to(device(rank)), y = training.targets(batch).to(device(rank));
      const auto backward = [&] {
        optimizer.zero_grad();
        torch::Tensor loss;
        {
          ForwardScope scope(group);
          loss = training.loss_of(net, x, y);
        }
        scaler.scale(loss).backward();
      };
      for (int step = 0; step < 3; ++step) {
        backward();
        if (step == 1) net.first->weight.mutable_grad().fill_(std::numeric_limits<float>::infinity());
        alone(rank, [] { take_host_waits(); });
        scaler.unscale_(optimizer);
        alone(rank, [] { expect_host_waits(0); });
        scaler.step(optimizer);
        scaler.update();
        alone(rank, [&] {
          EXPECT_THAT(take_host_waits(), testing::SizeIs(world)) << "one of each rank in step " << step;
        });
      }
      EXPECT_EQ(scaler.get_scale(), 32768);
      for (const auto& parameter : net.parameters())
        EXPECT_TRUE(full_tensor(parameter).cpu().isfinite().all().item<bool>());
    });
  }
}

TEST_F(CheckedTraining, GradientsThatArriveOnTwoStreamsAreReducedAfterBoth) {
  for (int world : worlds_up_to(3))
    for (bool begins_aside : {false, true})
      for (bool is_one_group : {false, true}) {
        SCOPED_TRACE(c10::str(begins_aside ? "reduced aside, " : "", is_one_group ? "one group" : "a group each"));
        expect_steps_are_ordered(forked_net(begins_aside, is_one_group), world);
      }
}

TEST_F(CheckedTraining, GradientsThatAccumulateOnStreamsInTurnsAreOrdered) {
  for (int world : worlds_up_to(3)) {
    const auto training = forked_net(/*begins_aside=*/false, /*is_one_group=*/true);
    on_ranks(training, world, [&](ForkedNetImpl& net, const Group& group, int rank) {
      const Batch batch{0, rank * training.samples_per_rank, training.samples_per_rank};
      const auto x = training.inputs(batch).to(device(rank)), y = training.targets(batch).to(device(rank));
      for (int step = 0; step < 6; ++step, net.begins_aside = !net.begins_aside) {
        group.set_requires_gradient_sync(step % 3 != 0);
        torch::Tensor loss;
        {
          ForwardScope scope(group);
          loss = training.loss_of(net, x, y);
        }
        loss.backward();
      }
      EXPECT_GT(clip_grad_norm_(group, 1e-3), 0);
    });
  }
}

TEST_F(CheckedTraining, GradientsThatAccumulateAreOrdered) {
  for (int world : worlds_up_to(3)) {
    const auto training = small_net();
    on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
      for (int step = 0; step < 3; ++step) {
        group.set_requires_gradient_sync(step != 0);
        const Batch batch{step, rank * training.samples_per_rank, training.samples_per_rank};
        torch::Tensor loss;
        {
          ForwardScope scope(group);
          loss =
              training.loss_of(net, training.inputs(batch).to(device(rank)), training.targets(batch).to(device(rank)));
        }
        loss.backward();
      }
      EXPECT_GT(clip_grad_norm_(group, 1e-3), 0);
    });
  }
}

TEST_F(CheckedTraining, AGatherInFlightThatIsDroppedKeepsItsMemoryUntilItIsOver) {
  for (int world : {2, 3})
    on_ranks(small_net(), world, [&](SmallNetImpl&, const Group& group, int) {
      for (int i = 0; i < 5; ++i) {
        static_cast<void>(group.unshard());
        group.reshard();
      }
      barrier();
    });
}

TEST_F(CheckedTraining, WorkThatIsDroppedKeepsItsTensorsUntilItIsOver) {
  for (int world : {2, 3})
    run_ranks(world, [&](int rank) {
      auto& ranks = default_process_group()->communicator();
      for (int i = 0; i < 5; ++i)
        static_cast<void>(ranks.all_reduce(torch::ones({64}, device(rank)), ReduceOp::kSum, {"dropped", {}}));
      barrier();
    });
}

// The stream that gathers is not the one that reads first.
TEST_F(CheckedTraining, ASecondStreamReadsWholeParametersAfterTheGather) {
  for (int world : worlds_up_to(3)) {
    const auto training = small_net({.reshard_after_forward = Reshard::never()});
    on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
      const auto own = c10::impl::VirtualGuardImpl(kType).getStream(device(rank));
      const auto side = c10::impl::VirtualGuardImpl(kType).getNewStream(device(rank), 0);
      const auto x = training.inputs({0, 0, 2});
      torch::NoGradGuard no_grad;
      for (int step = 0; step < 2; ++step) {
        ForwardScope scope(group);
        net.forward(x.to(device(rank)));
        const c10::StreamGuard guard(side);
        net.forward(x.to(device(rank)));
      }
      // What the caller made on the other stream; parameters are the library's.
      order(side, own);
    });
  }
}

TEST_F(CheckedTraining, MemoryIsTakenOnTheDeviceOfTheRankWhicheverIsCurrent) {
  for (int world : worlds_up_to(3)) {
    const auto training = small_net();
    on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
      thread_of_rank([&] {
        torch::NoGradGuard no_grad;
        ForwardScope scope(group);
        const auto whole = net.head->weight + 0;
        EXPECT_EQ(whole.device(), device(rank));
      }).join();
    });
  }
  for (const auto& violation : violations())  // operators find their device by themselves
    EXPECT_THAT(violation.text, testing::Not(testing::HasSubstr("allocation"))) << violation.text;
}

}  // namespace
}  // namespace fsdp::test::checked
