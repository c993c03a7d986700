// Tests, on the checked device, of the inputs of recomputed parts, and of the random numbers that the parts draw.

#include <c10/core/DeviceGuard.h>
#include <fsdp/activation_checkpoint.h>

#include <map>

#include "checked_device/training.h"
#include "support/checked_device/host_memory.h"

namespace fsdp::test::checked {
namespace {

class CheckedActivationInputs : public CheckedDevice {};

torch::Tensor drawn_like(const torch::Tensor& x) {
  const c10::DeviceGuard guard(x.device());
  return torch::empty_like(x).bernoulli_(0.5);
}

torch::Tensor masked(const torch::Tensor& x) {
  const c10::DeviceGuard guard(x.device());
  return torch::sin(x * drawn_like(x));
}

// The part draws from the generators of its tensors' devices, neither of which is the thread's current device.
TEST_F(CheckedActivationInputs, APartWithInputsOnTwoDevicesDrawsFromBothAgain) {
  std::vector<torch::Tensor> inputs;
  for (const int index : {1, 2}) {
    const c10::DeviceGuard guard(device(index));
    inputs.push_back(torch::randn({64}).to(device(index)).requires_grad_());
  }
  const auto part = [](const std::vector<torch::Tensor>& both) {
    return std::vector{masked(both[0]), masked(both[1])};
  };
  const auto run = [&](const auto& call) {
    torch::manual_seed(12);
    const auto results = call();
    std::vector<torch::Tensor> found;
    for (size_t i : {0, 1}) {
      const c10::DeviceGuard guard(inputs[i].device());
      drawn_like(inputs[i]);  // draws in between
      results[i].sum().backward();
      found.push_back(std::exchange(inputs[i].mutable_grad(), {}).cpu());
      found.push_back(drawn_like(inputs[i]).cpu());
    }
    return found;
  };
  const auto expected = run([&] { return part(inputs); });
  const auto found = run([&] { return activation_checkpoint(part, inputs); });
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << i;
  const auto other = run([&] { return activation_checkpoint({.preserve_rng_state = false}, part, inputs); });
  EXPECT_FALSE(torch::equal(expected[0], other[0])) << "without preserve_rng_state, the masks must differ";
}

// Operators depend on strides: `view` refuses some, and sums are taken in another order.
TEST_F(CheckedActivationInputs, AnInputInHostMemoryComesBackAsItLay) {
  const auto weight = torch::ones({4, 6, 5}).to(device(0)).requires_grad_();
  const auto given = torch::randn({4, 6, 5}).to(device(0));
  const std::map<std::string, torch::Tensor> inputs{{"transposed", given.transpose(0, 2).contiguous().transpose(0, 2)},
                                                    {"a slice", torch::randn({4, 6, 7}).to(device(0)).narrow(2, 1, 5)},
                                                    {"expanded", torch::randn({6, 1}).to(device(0)).expand({4, 6, 5})}};
  for (const auto& [name, x] : inputs) {
    std::vector<c10::DimVector> strides;
    const auto part = [&](const torch::Tensor& h) {
      strides.emplace_back(h.strides());
      return torch::sin(h * weight);
    };
    part(x).sum().backward();
    const auto expected = std::exchange(weight.mutable_grad(), {}).cpu();
    activation_checkpoint({.offload_inputs = true}, part, x).sum().backward();
    EXPECT_TRUE(torch::equal(expected, std::exchange(weight.mutable_grad(), {}).cpu())) << name;
    EXPECT_EQ(strides.size(), 3u);
    EXPECT_EQ(strides.back(), c10::DimVector(x.strides())) << name;
  }
}

TEST_F(CheckedActivationInputs, AnExpandedInputIsNotWrittenOutInHostMemory) {
  const auto weight = torch::ones({64, 6}).to(device(0)).requires_grad_();
  const auto x = torch::randn({6}).to(device(0)).expand({64, 6});
  HostMemory::get().take_bytes();
  const auto result = activation_checkpoint({.offload_inputs = true}, [&](const auto& h) { return h * weight; }, x);
  EXPECT_EQ(HostMemory::get().take_bytes().to_host, 0u);
  result.sum().backward();
}

TEST_F(CheckedActivationInputs, InputsInHostMemoryAreCountedThere) {
  const auto training = small_net();
  for (bool offloads : {false, true})
    on_ranks(training, 2, [&](SmallNetImpl& net, const Group& group, int) {
      const auto x = training.share_of().x;
      torch::Tensor loss;
      {
        const ForwardScope scope(group);
        auto h = torch::tanh(net.first(x));
        for (auto& block : *net.blocks)
          h = activation_checkpoint({.offload_inputs = offloads}, std::dynamic_pointer_cast<SmallBlockImpl>(block), h);
        loss = net.head(h).sum();
      }
      const int64_t inputs = 2 * 2 * 11 * static_cast<int64_t>(x.element_size());
      EXPECT_EQ(group.stats().host.current, offloads ? inputs : 0);
      EXPECT_EQ(group.stats().activation.current, offloads ? 0 : inputs);
      loss.backward();
      EXPECT_EQ(group.stats().host.current, 0);
      EXPECT_EQ(group.stats().activation.current, 0);
    });
}

}  // namespace
}  // namespace fsdp::test::checked
