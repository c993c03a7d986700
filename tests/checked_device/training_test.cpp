// Tests of the runtime on the checked device, apart from whole steps: tensors that are dropped, streams that read,
// waits of the host.

#include "checked_device/training.h"
#include "optim/every_optimizer.h"
#include "runtime/reduction.h"

namespace fsdp::test::checked {
namespace {

class CheckedRuntime : public CheckedDevice {};

// Starts a reduction of ones over all ranks, scaled by a quarter. This rank's slice of the result goes to `rows`.
std::vector<std::shared_ptr<Work>> start_sum(const runtime::Placement& placement, const torch::Tensor& rows) {
  const int64_t ranks = placement.shard().world_size();
  const ReducePlane counts{torch::empty({1}, rows.options()), {{0, torch::ones({ranks}, rows.options())}}};
  const auto whole = torch::ones({ranks * rows.numel()}, rows.options());
  return runtime::start_sum(placement, /*over_replicas=*/true, {{rows, {{0, whole}}}}, counts, 0.25, {"w", {}}, {});
}

TEST_F(CheckedRuntime, ReductionsOverBothAxesThatAreDroppedKeepTheirTensorsUntilTheyAreOver) {
  run_ranks(4, [&](int rank) {
    const auto placement = placement_over({2, 2});
    for (int i = 0; i < 5; ++i) static_cast<void>(start_sum(placement, torch::empty({32}, device(rank))));
    placement.shard().reductions().barrier({})->wait();
    placement.further_steps().front()->barrier({})->wait();
  });
}

// The reader multiplies the sum by `scale`. If the stream that waited first did so in place, other streams would read
// without an order.
TEST_F(CheckedRuntime, AReductionOverBothAxesIsReadOnTwoStreams) {
  run_ranks(2, [&](int rank) {
    const auto placement = placement_over({1, 2});
    const auto rows = torch::empty({64}, device(rank));
    const auto started = start_sum(placement, rows);
    for (const auto& work : started) work->wait();
    const auto side = new_stream_of(rank);
    {
      const c10::StreamGuard guard(side);
      for (const auto& work : started) work->wait();
      EXPECT_EQ(rows.mul(0.25).sum().item<float>(), 32);
    }
    order(side, current_stream_of(rank));
  });
}

TEST_F(CheckedRuntime, AGatherInFlightThatIsDroppedKeepsItsMemoryUntilItIsOver) {
  on_ranks(small_net(), 3, [&](SmallNetImpl&, const Group& group, int) {
    for (int i = 0; i < 5; ++i) {
      static_cast<void>(group.unshard());
      group.reshard();
    }
    barrier();
  });
}

TEST_F(CheckedRuntime, WorkThatIsDroppedKeepsItsTensorsUntilItIsOver) {
  run_ranks(3, [&](int rank) {
    auto& ranks = default_process_group()->communicator();
    for (int i = 0; i < 5; ++i)
      static_cast<void>(ranks.all_reduce(torch::ones({64}, device(rank)), ReduceOp::kSum, {"dropped", {}}));
    barrier();
  });
}

// The optimizer counts its steps on the host, so the host must know whether to call it. This takes one wait per step.
TEST_F(CheckedRuntime, StepsWithAGradScalerMakeTheHostWaitOnce) {
  constexpr int kWorld = 3;
  const auto training = small_net({.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}});
  on_ranks(training, kWorld, [&](SmallNetImpl& net, const Group& group, int rank) {
    optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    GradScaler scaler;
    const auto share = training.share_of();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      scaler.scale(training.forward(net, group, share)).backward();
      if (step == 1) net.first->weight.mutable_grad().fill_(std::numeric_limits<float>::infinity());
      alone(rank, [] { take_host_waits(); });
      scaler.unscale_(optimizer);
      alone(rank, [] { expect_host_waits(0); });
      scaler.step(optimizer);
      scaler.update();
      alone(rank, [&] { expect_host_waits(kWorld); });
    }
    EXPECT_EQ(scaler.get_scale(), 32768);
    for (const auto& values : whole_values(net)) EXPECT_TRUE(values.isfinite().all().item<bool>());
  });
}

// The stream that gathers is not the stream that reads first.
TEST_F(CheckedRuntime, ASecondStreamReadsWholeParametersAfterTheGather) {
  const auto training = small_net({.reshard_after_forward = Reshard::never()});
  for (const int world : {1, 2})
    on_ranks(training, world, [&](SmallNetImpl& net, const Group& group, int rank) {
      const auto side = new_stream_of(rank);
      const auto x = training.inputs({0, 0, 2});
      const torch::NoGradGuard no_grad;
      for (int step = 0; step < 2; ++step) {
        const ForwardScope scope(group);
        net.forward(x.to(device(rank)));
        const c10::StreamGuard guard(side);
        net.forward(x.to(device(rank)));
      }
      // Orders what the caller made on the other stream; the library orders the parameters itself.
      order(side, current_stream_of(rank));
    });
}

TEST_F(CheckedRuntime, MemoryIsTakenOnTheDeviceOfTheRankWhicheverIsCurrent) {
  on_ranks(small_net(), 2, [&](SmallNetImpl& net, const Group& group, int rank) {
    thread_of_rank([&] {
      const torch::NoGradGuard no_grad;
      const ForwardScope scope(group);
      EXPECT_EQ((net.head->weight + 0).device(), device(rank));
    }).join();
  });
  for (const auto& violation : violations())  // operators find their device by themselves
    EXPECT_THAT(violation.text, testing::Not(testing::HasSubstr("allocation"))) << violation.text;
}

// Returns the change of zero parameters in one step, with gradients that become 0 in low precision when kFactor
// multiplies them.
at::Tensor scaled_step(const OptimizerCase& optimizer, double lr, at::ScalarType dtype, c10::Device device) {
  constexpr double kFactor = 1.0 / 4096;
  const auto gradient = torch::tensor({1.5, -1.25, 1.0, -1.75}) / 16384;
  const auto parameter = torch::zeros({4}, torch::dtype(dtype).device(device)).requires_grad_();
  parameter.mutable_grad() = gradient.to(dtype).to(device);
  auto made = optimizer.make({parameter}, {});
  made.torchs->param_groups()[0].options().set_lr(lr);
  made.flat->step_scaled(kFactor);
  EXPECT_TRUE(torch::equal(parameter.grad().to(at::kCPU, at::kFloat), gradient.to(at::kFloat))) << "gradients stay";
  return parameter.detach().to(at::kCPU, at::kFloat);
}

// Operators on the device must keep as many digits as those on the CPU.
TEST_F(CheckedRuntime, AFactorLosesNothingOfGradientsOfLowPrecisionInAnyOptimizer) {
  run_ranks(1, [](int rank) {
    EXPECT_EQ(((torch::tensor({1.75}) / 16384).to(at::kHalf) / 4096).item<double>(), 0);
    for (const auto& optimizer : every_optimizer()) {
      SCOPED_TRACE(optimizer.name);
      if (!optimizer.takes(at::kHalf, {})) continue;
      // This learning rate makes the changes about 1.
      const double lr = 1 / scaled_step(optimizer, 1, at::kFloat, at::kCPU).abs().max().item<double>();
      const auto expected = scaled_step(optimizer, lr, at::kFloat, at::kCPU);
      const auto found = scaled_step(optimizer, lr, at::kHalf, device(rank));
      EXPECT_TRUE(torch::allclose(expected, found, 1e-3, 0)) << expected << "\nfound\n" << found;
    }
  });
}

}  // namespace
}  // namespace fsdp::test::checked
