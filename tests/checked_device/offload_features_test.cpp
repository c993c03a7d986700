// With rows in host memory everything else of the library does what it does with rows on the device.

#include <gmock/gmock.h>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "support/checked_device/host_memory.h"
#include "support/disk_folder.h"
#include "checked_device/offload.h"

namespace fsdp::test::checked {
namespace {

// What `act(net, group, batch)` leaves: parameters, and gradients where there are some.
using Act = std::function<void(SmallNetImpl&, const Group&, const std::function<void(int step)>& backward)>;

std::vector<torch::Tensor> values_after(const FullyShardOptions& options, int world, const Act& act) {
  std::vector<torch::Tensor> values;
  const auto training = small_net(options);
  on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
    act(net, group, [&](int step) {
      const Batch batch{step, rank * training.samples_per_rank, training.samples_per_rank};
      torch::Tensor loss;
      {
        ForwardScope scope(group);
        loss = training.loss_of(net, training.inputs(batch).to(device(rank), net.head->weight.scalar_type()),
                                training.targets(batch).to(device(rank), net.head->weight.scalar_type()));
      }
      loss.backward();
    });
    for (const auto& parameter : net.parameters()) {
      const auto whole = full_tensor(parameter).cpu(), gradient = full_grad(parameter);
      if (rank == 0) values.push_back(whole);
      if (rank == 0 && gradient.defined()) values.push_back(gradient.cpu());
    }
  });
  return values;
}

void expect_as_on_the_device(const FullyShardOptions& options, int world, const Act& act, double tolerance = 1e-12) {
  SCOPED_TRACE(c10::str("world ", world));
  const auto expected = values_after(options, world, act);
  for (const bool is_pinned : {true, false}) {
    const auto found = values_after(on_host(options, is_pinned), world, act);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), expected[i].scalar_type());
      EXPECT_LE(relative_difference(expected[i], found[i]), tolerance) << i << (is_pinned ? ", pinned" : "");
    }
  }
}

torch::optim::SGD sgd_of(const SmallNetImpl& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

TEST_F(CheckedOffload, GradientsOfSeveralBackwardsAddUpAndAreClipped) {
  for (const int world : worlds_up_to(3))
    expect_as_on_the_device({}, world, [](auto& net, const auto& group, const auto& backward) {
      auto optimizer = sgd_of(net);
      for (int step = 0; step < 6; ++step) {
        group.set_requires_gradient_sync(step % 3 != 0);
        backward(step);  // the third of three adds to what the second left
        if (step % 3 != 2) continue;
        EXPECT_GT(clip_grad_norm_(group, 1e-3), 1e-3);
        optimizer.step();
        if (step == 2) optimizer.zero_grad();
      }
    });
}

TEST_F(CheckedOffload, BackwardsThatReductionsOutliveAddUpInTheLast) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate})
    expect_as_on_the_device({.strategy = strategy, .bucket_cap_bytes = 300}, 2,
                            [](auto& net, const auto& group, const auto& backward) {
                              auto optimizer = sgd_of(net);
                              for (int step = 0; step < 6; ++step) {
                                group.set_is_last_backward(step % 3 == 2);
                                backward(step);
                                if (step % 3 != 2) continue;
                                optimizer.step();
                                optimizer.zero_grad();
                              }
                            });
}

TEST_F(CheckedOffload, OptimizersStepInTheMiddleOfABackward) {
  for (const int world : {1, 2})
    expect_as_on_the_device({}, world, [](SmallNetImpl& net, const Group&, const auto& backward) {
      std::vector<std::unique_ptr<optim::AdamW>> optimizers;
      std::vector<Group> groups;
      for (const auto& block : *net.blocks) {
        optimizers.push_back(std::make_unique<optim::AdamW>(block->parameters(), torch::optim::AdamWOptions(1e-2)));
        groups.push_back(group_of(*block));
        groups.back().set_post_accumulate_grad_hook([optimizer = optimizers.back().get()](const auto&) {
          optimizer->step();
          optimizer->zero_grad();
        });
      }
      for (int step = 0; step < 3; ++step) backward(step);
      for (const auto& of_block : groups) of_block.set_post_accumulate_grad_hook({});
    });
}

TEST_F(CheckedOffload, GoesOnAfterSetStrategyAndAnotherDtype) {
  expect_as_on_the_device(
      {}, 2,
      [](SmallNetImpl& net, const Group& group, const auto& backward) {
        auto optimizer = sgd_of(net);
        const auto step = [&](int number) {
          backward(number);
          optimizer.step();
        };
        step(0);
        set_strategy(group, optimizer, Strategy::kShardGradOp);
        step(1);
        set_strategy(group, optimizer, Strategy::kReplicate);
        step(2);
        optimizer.zero_grad();
        to(group, torch::kFloat);
        backward(3);
        EXPECT_EQ(group.stats().host.current > 0, net.head->weight.is_cpu());
      },
      1e-6);
}

TEST_F(CheckedOffload, WholeValuesAreReadWrittenAndSummed) {
  expect_as_on_the_device({}, 2, [](SmallNetImpl& net, const Group& group, const auto& backward) {
    for (const bool to_cpu : {false, true}) {
      auto whole = summon_full_params(group, {.offload_to_cpu = to_cpu});
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(net.head->weight.is_cpu(), to_cpu);
      for (auto& parameter : net.parameters()) parameter.mul_(1.5);
      whole.write_back();
    }
    {
      const LocalRows rows(group);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) parameter.add_(0.25);
    }
    backward(0);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.mul_(norm(group) / (1 + std::abs(sum(group))));
    auto average = clone(group);
    for (auto& parameter : net.parameters()) parameter.add_(1);
    average.update(0.5);
    const auto use = average.use();
  });
}

TEST_F(CheckedOffload, CheckpointsAreThoseOfAModelOnTheDevice) {
  const DiskFolder folder;
  const auto path = folder.path();
  const Act save = [&](SmallNetImpl& net, const Group& group, const auto& backward) {
    auto optimizer = optim::AdamW(net.parameters(), torch::optim::AdamWOptions(1e-2));
    backward(0);
    optimizer.step();
    save_checkpoint(path, group, &optimizer, {.step = 1});
  };
  const auto expected = values_after(on_host(), 2, save);
  for (const auto& options : {FullyShardOptions(), on_host()})
    for (const int world : {1, 2, 3}) {
      const auto found = values_after(options, world, [&](SmallNetImpl& net, const Group& group, const auto& backward) {
        auto optimizer = optim::AdamW(net.parameters(), torch::optim::AdamWOptions(1e-2));
        backward(3);
        optimizer.step();
        optimizer.zero_grad();
        load_checkpoint(path, group, &optimizer);
      });
      size_t i = 0;
      for (const auto& values : found) EXPECT_TRUE(torch::equal(values, expected[2 * i++])) << i;
    }
}

// Rank 0 has data for the first step alone, and then follows rank 1.
TEST_F(CheckedOffload, RanksWithoutDataTakePart) {
  expect_as_on_the_device({}, 2, [](SmallNetImpl& net, const Group& group, const auto& backward) {
    auto optimizer = sgd_of(net);
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(join(group, step == 0 || rank() == 1, [&] { backward(step); }));
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

size_t numel_with_padding(const Group& model) {
  size_t numel = 0;
  for (const auto& group : param_groups(model))
    for (const auto& flat : group->flats()) numel += static_cast<size_t>(flat.whole().numel);
  return numel;
}

TEST_F(CheckedOffload, LowPrecisionIsCastOnTheSideFromWhichFewerBytesTravel) {
  struct Case {
    at::ScalarType param, reduce;
    size_t to_device, to_host;  // bytes an element
  };
  for (const auto& [param, reduce, to_device, to_host] :
       {Case{torch::kBFloat16, torch::kFloat, 2, 4}, Case{torch::kBFloat16, torch::kBFloat16, 2, 2},
        Case{torch::kFloat, torch::kFloat, 4, 4}, Case{torch::kDouble, torch::kDouble, 8, 8}}) {
    SCOPED_TRACE(c10::str(param, " reduced in ", reduce));
    const FullyShardOptions options{.reshard_after_forward = Reshard::never(),
                                    .mp_policy = MixedPrecisionPolicy{.param_dtype = param, .reduce_dtype = reduce}};
    size_t elements = 0;  // with padding
    const Act act = [&](SmallNetImpl& net, const Group& group, const auto& backward) {
      if (rank() == 0) elements = numel_with_padding(group);
      auto optimizer = sgd_of(net);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        backward(step);
        optimizer.step();
      }
    };
    const auto expected = values_after(options, 2, act);
    HostMemory::get().take_bytes();
    const auto found = values_after(on_host(options), 2, act);
    const auto bytes = HostMemory::get().take_bytes();
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
    constexpr size_t kSteps = 3;
    EXPECT_EQ(bytes.to_device, kSteps * elements * to_device);
    EXPECT_EQ(bytes.to_host, kSteps * elements * to_host);
  }
}

TEST_F(CheckedOffload, LowPrecisionRowsAreCastOnTheDevice) {
  auto training = small_net(on_host({.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kFloat}}));
  training.dtype = torch::kBFloat16;
  on_ranks(training, 2, [&](SmallNetImpl& net, const Group& group, int rank) {
    const auto before = full_tensor(net.head->weight);
    {
      ForwardScope scope(group);
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::equal((net.head->weight + 0).cpu(), before.to(torch::kFloat)));
    }
    const Batch batch{0, 0, 2};
    auto optimizer = sgd_of(net);
    run_step(training, net, group, optimizer, training.inputs(batch).to(device(rank)),
             training.targets(batch).to(device(rank)));
    EXPECT_EQ(net.head->weight.grad().scalar_type(), torch::kBFloat16);
  });
}

}  // namespace
}  // namespace fsdp::test::checked
