// On the checked device, whose backwards run on threads of the engine's: parts that differentiate inside.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/activation_checkpoint.h>
#include <torch/torch.h>

#include "support/checked_device/checked_device.h"

namespace fsdp::test::checked {
namespace {

class CheckedActivationInside : public CheckedDevice {};

TEST_F(CheckedActivationInside, APartThatDifferentiatesHasTheBitsOfThePlainCall) {
  c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  torch::manual_seed(4);
  const auto x = torch::randn({4, 6}).to(device(0)).requires_grad_();
  const auto w = torch::randn({6, 6}).to(device(0)).requires_grad_(), v = torch::randn({6, 6}).to(device(0));
  const auto part = [&](const torch::Tensor& h) {
    const auto energy = torch::tanh(torch::mm(h, w)).square().sum();
    const auto slope = torch::autograd::grad({energy}, {h}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return torch::tanh(torch::mm(torch::sin(slope), v));
  };
  const auto gradients_of = [&](const torch::Tensor& result) {
    result.square().sum().backward();
    return std::vector{std::exchange(x.mutable_grad(), {}).cpu(), std::exchange(w.mutable_grad(), {}).cpu()};
  };
  const auto expected = gradients_of(part(x));
  for (const auto& options : {CheckpointOptions{}, CheckpointOptions{.keeps_results = is_product}}) {
    const auto found = gradients_of(activation_checkpoint(options, part, x));
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << i;
  }
}

}  // namespace
}  // namespace fsdp::test::checked
