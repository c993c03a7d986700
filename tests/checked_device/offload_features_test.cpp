// Tests that every other feature of the library gives the same results with rows in host memory as with rows on the
// device.

#include "api/group_view.h"
#include "checked_device/training.h"
#include "runtime/param_group.h"
#include "support/checked_device/host_memory.h"
#include "support/disk_folder.h"

namespace fsdp::test::checked {
namespace {

using Backward = std::function<void(int step)>;
using Act = std::function<void(SmallNetImpl&, const Group&, const Backward& backward)>;

// Returns the parameters after `act`, and the gradients that exist.
std::vector<torch::Tensor> values_after(const FullyShardOptions& options, int world, const Act& act) {
  std::vector<torch::Tensor> values;
  const auto training = small_net(options);
  on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
    act(net, group, [&](int step) {
      training.forward(net, group, training.share_of(step, net.head->weight.scalar_type())).backward();
    });
    auto found = whole_values(net);
    for (const auto& parameter : net.parameters())
      if (parameter.grad().defined()) found.push_back(full_grad(parameter).cpu());
    if (rank == 0) values = std::move(found);
  });
  return values;
}

void expect_as_on_the_device(const FullyShardOptions& options, int world, const Act& act, double tolerance = 1e-12,
                             bool is_pinned = true) {
  const auto expected = values_after(options, world, act);
  const auto found = values_after(on_host(options, is_pinned), world, act);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), expected[i].scalar_type());
    EXPECT_LE(relative_difference(expected[i], found[i]), tolerance) << i;
  }
}

TEST_F(CheckedOffload, GradientsOfSeveralBackwardsAddUpAndAreClipped) {
  const Act act = [](SmallNetImpl& net, const Group& group, const Backward& backward) {
    auto optimizer = sgd(net.parameters());
    for (int step = 0; step < 4; ++step) {
      group.set_requires_gradient_sync(step != 0);
      backward(step);  // the third step adds to the gradients of the second one
      if (step < 2) continue;
      EXPECT_GT(clip_grad_norm_(group, 1e-3), 1e-3);
      optimizer.step();
      if (step == 2) optimizer.zero_grad();
    }
  };
  for (const int world : {1, 3}) expect_as_on_the_device({}, world, act, 1e-12, /*is_pinned=*/world == 3);
}

TEST_F(CheckedOffload, BackwardsThatReductionsOutliveAddUpInTheLast) {
  const Act act = [](SmallNetImpl& net, const Group& group, const Backward& backward) {
    auto optimizer = sgd(net.parameters());
    for (int step = 0; step < 4; ++step) {
      group.set_is_last_backward(step >= 2);
      backward(step);
      if (step < 2) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate})
    expect_as_on_the_device({.strategy = strategy, .bucket_cap_bytes = 300}, 2, act, 1e-12,
                            /*is_pinned=*/strategy == Strategy::kFullShard);
}

TEST_F(CheckedOffload, OptimizersStepInTheMiddleOfABackward) {
  expect_as_on_the_device({}, 2, [](SmallNetImpl& net, const Group&, const Backward& backward) {
    std::vector<std::unique_ptr<optim::AdamW>> optimizers;
    for (const auto& block : *net.blocks) {
      optimizers.push_back(std::make_unique<optim::AdamW>(block->parameters(), torch::optim::AdamWOptions(1e-2)));
      group_of(*block).set_post_accumulate_grad_hook([optimizer = optimizers.back().get()](const auto&) {
        optimizer->step();
        optimizer->zero_grad();
      });
    }
    for (int step = 0; step < 3; ++step) backward(step);
    for (const auto& block : *net.blocks) group_of(*block).set_post_accumulate_grad_hook({});
  });
}

TEST_F(CheckedOffload, GoesOnAfterSetStrategyAndAnotherDtype) {
  const Act act = [](SmallNetImpl& net, const Group& group, const Backward& backward) {
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
  };
  expect_as_on_the_device({}, 2, act, 1e-6);
}

TEST_F(CheckedOffload, WholeValuesAreReadWrittenAndSummed) {
  expect_as_on_the_device({}, 2, [](SmallNetImpl& net, const Group& group, const Backward& backward) {
    {
      auto whole = summon_full_params(group);
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(net.head->weight.is_cpu());
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
  const auto act = [&](bool saves) -> Act {
    return [&folder, saves](SmallNetImpl& net, const Group& group, const Backward& backward) {
      auto optimizer = optim::AdamW(net.parameters(), torch::optim::AdamWOptions(1e-2));
      backward(saves ? 0 : 3);
      optimizer.step();
      optimizer.zero_grad();
      if (saves)
        save_checkpoint(folder.path(), group, &optimizer, {.step = 1});
      else
        load_checkpoint(folder.path(), group, &optimizer);
    };
  };
  const auto expected = values_after(on_host(), 2, act(true));
  for (const auto& [options, world] : {std::pair(FullyShardOptions(), 3), {on_host(), 1}, {on_host(), 3}}) {
    const auto found = values_after(options, world, act(false));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
  }
}

// Rank 0 has data in the first step only.
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
    size_t to_device, to_host;  // numbers of bytes per element
  };
  for (const auto& [param, reduce, to_device, to_host] :
       {Case{torch::kBFloat16, torch::kFloat, 2, 4}, Case{torch::kBFloat16, torch::kBFloat16, 2, 2},
        Case{torch::kDouble, torch::kDouble, 8, 8}}) {
    SCOPED_TRACE(c10::str(param, " reduced in ", reduce));
    const FullyShardOptions options{.reshard_after_forward = Reshard::never(),
                                    .mp_policy = MixedPrecisionPolicy{.param_dtype = param, .reduce_dtype = reduce}};
    size_t elements = 0;  // including padding
    HostMemory::Bytes bytes;
    const Act act = [&](SmallNetImpl& net, const Group& group, const Backward& backward) {
      if (rank() == 0) elements = numel_with_padding(group);
      auto optimizer = sgd(net.parameters());
      alone(rank(), [] { HostMemory::get().take_bytes(); });
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        backward(step);
        optimizer.step();
      }
      alone(rank(), [&] { bytes = HostMemory::get().take_bytes(); });
    };
    const auto expected = values_after(options, 2, act), found = values_after(on_host(options), 2, act);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
    EXPECT_EQ(bytes.to_device, 2 * elements * to_device) << "in two steps";
    EXPECT_EQ(bytes.to_host, 2 * elements * to_host);
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
    run_step(training, net, group, optimizer, training.share_of());
    EXPECT_EQ(net.head->weight.grad().scalar_type(), torch::kBFloat16);
  });
}

}  // namespace
}  // namespace fsdp::test::checked
