// With rows in host memory everything else of the library does what it does with rows on the device.

#include "api/group_view.h"
#include "checked_device/training.h"
#include "runtime/param_group.h"
#include "support/checked_device/host_memory.h"
#include "support/disk_folder.h"

namespace fsdp::test::checked {
namespace {

using Backward = std::function<void(int step)>;
using Act = std::function<void(SmallNetImpl&, const Group&, const Backward& backward)>;

// What `act` leaves: parameters, and gradients where there are some.
std::vector<torch::Tensor> values_after(const FullyShardOptions& options, int world, const Act& act) {
  std::vector<torch::Tensor> values;
  auto training = small_net(options);
  training.build = [] { return std::make_shared<SmallNetImpl>(11, 2); };
  on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
    act(net, group, [&](int step) {
      training.forward(net, group, training.share_of(step, net.head->weight.scalar_type())).backward();
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

TEST_F(CheckedOffload, GradientsOfSeveralBackwardsAddUpAndAreClipped) {
  for (const int world : {1, 3})
    expect_as_on_the_device({}, world, [](SmallNetImpl& net, const Group& group, const Backward& backward) {
      auto optimizer = sgd(net.parameters());
      for (int step = 0; step < 4; ++step) {
        group.set_requires_gradient_sync(step != 0);
        backward(step);  // the third adds to what the second left
        if (step < 2) continue;
        EXPECT_GT(clip_grad_norm_(group, 1e-3), 1e-3);
        optimizer.step();
        if (step == 2) optimizer.zero_grad();
      }
    });
}

TEST_F(CheckedOffload, BackwardsThatReductionsOutliveAddUpInTheLast) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate})
    expect_as_on_the_device({.strategy = strategy, .bucket_cap_bytes = 300}, 2,
                            [](SmallNetImpl& net, const Group& group, const Backward& backward) {
                              auto optimizer = sgd(net.parameters());
                              for (int step = 0; step < 4; ++step) {
                                group.set_is_last_backward(step >= 2);
                                backward(step);
                                if (step < 2) continue;
                                optimizer.step();
                                optimizer.zero_grad();
                              }
                            });
}

TEST_F(CheckedOffload, OptimizersStepInTheMiddleOfABackward) {
  for (const int world : {1, 2})
    expect_as_on_the_device({}, world, [](SmallNetImpl& net, const Group&, const Backward& backward) {
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
      [](SmallNetImpl& net, const Group& group, const Backward& backward) {
        auto optimizer = sgd(net.parameters());
        int step = 0;
        for (const auto next : {Strategy::kShardGradOp, Strategy::kReplicate}) {
          backward(step++);
          optimizer.step();
          set_strategy(group, optimizer, next);
        }
        backward(step++);
        optimizer.step();
        optimizer.zero_grad();
        to(group, torch::kFloat);
        backward(step);
        EXPECT_EQ(group.stats().host.current > 0, net.head->weight.is_cpu());
      },
      1e-6);
}

TEST_F(CheckedOffload, WholeValuesAreReadWrittenAndSummed) {
  expect_as_on_the_device({}, 2, [](SmallNetImpl& net, const Group& group, const Backward& backward) {
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
  const Act save = [&](SmallNetImpl& net, const Group& group, const Backward& backward) {
    auto optimizer = optim::AdamW(net.parameters(), torch::optim::AdamWOptions(1e-2));
    backward(0);
    optimizer.step();
    save_checkpoint(path, group, &optimizer, {.step = 1});
  };
  const auto expected = values_after(on_host(), 2, save);
  for (const auto& options : {FullyShardOptions(), on_host()})
    for (const int world : {1, 2, 3}) {
      const Act load = [&](SmallNetImpl& net, const Group& group, const Backward& backward) {
        auto optimizer = optim::AdamW(net.parameters(), torch::optim::AdamWOptions(1e-2));
        backward(3);
        optimizer.step();
        optimizer.zero_grad();
        load_checkpoint(path, group, &optimizer);
      };
      const auto found = values_after(options, world, load);
      size_t i = 0;
      for (const auto& values : found) EXPECT_TRUE(torch::equal(values, expected[2 * i++])) << i;
    }
}

// Rank 0 has data for the first step alone, and then follows rank 1.
TEST_F(CheckedOffload, RanksWithoutDataTakePart) {
  expect_as_on_the_device({}, 2, [](SmallNetImpl& net, const Group& group, const Backward& backward) {
    auto optimizer = sgd(net.parameters());
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
    const Act act = [&](SmallNetImpl& net, const Group& group, const Backward& backward) {
      if (rank() == 0) elements = numel_with_padding(group);
      auto optimizer = sgd(net.parameters());
      for (int step = 0; step < 2; ++step) {
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
    constexpr size_t kSteps = 2;
    EXPECT_EQ(bytes.to_device, kSteps * elements * to_device);
    EXPECT_EQ(bytes.to_host, kSteps * elements * to_host);
  }
}

TEST_F(CheckedOffload, LowPrecisionRowsAreCastOnTheDevice) {
  auto training = small_net(on_host({.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kFloat}}));
  training.dtype = torch::kBFloat16;
  on_ranks(training, 2, [&](SmallNetImpl& net, const Group& group, int) {
    const auto before = full_tensor(net.head->weight);
    {
      ForwardScope scope(group);
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::equal((net.head->weight + 0).cpu(), before.to(torch::kFloat)));
    }
    auto optimizer = sgd(net.parameters());
    run_step(training, net, group, optimizer, training.share_of(0));
    EXPECT_EQ(net.head->weight.grad().scalar_type(), torch::kBFloat16);
  });
}

}  // namespace
}  // namespace fsdp::test::checked
