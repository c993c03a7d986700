// Parts that differentiate inside, as forces that are trained are gradients of energies.

#include <torch/torch.h>

#include "activation/parts.h"

namespace fsdp::test {
namespace {

// Of an energy, by what it depends on.
template <class Energy>
auto slope_of(const Energy& energy) {
  return [=](const torch::Tensor& x) {
    return torch::autograd::grad({energy(x)}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  };
}

TEST(ActivationInside, APartThatDifferentiatesHasTheBitsOfThePlainCall) {
  auto block = block_of();
  const auto x = input();
  const auto part = slope_of([&](const torch::Tensor& h) { return torch::tanh(block(h)).square().sum(); });
  part(x).square().sum().backward();
  const auto expected = take_gradients(*block, x);
  // More often than an engine nests backwards on one thread.
  for (int i = 0; i < 70; ++i) {
    activation_checkpoint(part, x).square().sum().backward();
    expect_equal_bits(expected, take_gradients(*block, x));
  }
}

TEST(ActivationInside, WhatFollowsTheSlopeIsComputedAgain) {
  auto block = block_of();
  const auto x = input();
  const auto part = [&](const torch::Tensor& h) {
    const auto slope = slope_of([&](const torch::Tensor& at) { return block(at).square().sum(); });
    return torch::tanh(block(slope(torch::tanh(h))));
  };
  part(x).square().sum().backward();
  const auto expected = take_gradients(*block, x);
  for (const auto& options : {CheckpointOptions{}, CheckpointOptions{.keeps_results = is_product},
                              CheckpointOptions{.keeps_results = [](std::string_view) { return true; }}}) {
    activation_checkpoint(options, part, x).square().sum().backward();
    expect_equal_bits(expected, take_gradients(*block, x));
  }
}

TEST(ActivationInside, ASlopeOfPartsInsideAPartHasTheBitsOfThePlainCall) {
  auto block = block_of(), other = SmallBlock(6);
  const auto x = input();
  const auto part = [&](bool checkpoints) {
    return slope_of([&block, &other, checkpoints](const torch::Tensor& h) {
      const auto between = torch::tanh(block(h));
      return (checkpoints ? activation_checkpoint(other, between) : other(between)).square().sum();
    });
  };
  part(false)(x).square().sum().backward();
  const auto expected = take_gradients(*block, x);
  const auto expected_inside = take_gradients(*other, x);
  activation_checkpoint(part(true), x).square().sum().backward();
  expect_equal_bits(expected, take_gradients(*block, x));
  expect_equal_bits(expected_inside, take_gradients(*other, x));
}

}  // namespace
}  // namespace fsdp::test
