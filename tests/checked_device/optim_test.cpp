// The optimizers of fsdp::optim on the checked device: by operators, in as many digits as on the CPU.

#include "support/checked_device/checked_device.h"
#include "support/oracle.h"
#include "optim/every_optimizer.h"

namespace fsdp::test::checked {
namespace {

class CheckedOptim : public CheckedDevice {};

// The change of parameters that are zeros, for gradients that are 0 in low precision when `factor` has multiplied them.
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

TEST_F(CheckedOptim, AFactorLosesNothingOfGradientsOfLowPrecision) {
  run_ranks(1, [](int rank) {
    EXPECT_EQ(((torch::tensor({1.75}) / 16384).to(at::kHalf) / 4096).item<double>(), 0);
    for (const auto& optimizer : every_optimizer()) {
      SCOPED_TRACE(optimizer.name);
      if (!optimizer.takes(at::kHalf, {})) continue;
      // Such that changes are about 1.
      const double lr = 1 / scaled_step(optimizer, 1, at::kFloat, at::kCPU).abs().max().item<double>();
      const auto expected = scaled_step(optimizer, lr, at::kFloat, at::kCPU);
      const auto found = scaled_step(optimizer, lr, at::kHalf, device(rank));
      EXPECT_TRUE(torch::allclose(expected, found, 1e-3, 0)) << expected << "\nfound\n" << found;
    }
  });
}

}  // namespace
}  // namespace fsdp::test::checked
