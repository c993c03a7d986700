// Tests of recomputed parts that differentiate inside, as when trained forces are gradients of energies.

#include <torch/torch.h>

#include "activation/parts.h"

namespace fsdp::test {
namespace {

// Returns a function that computes the gradient of an energy with respect to its input.
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
  // The loop nests more backwards than an engine runs on one thread.
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
  for (const auto& options : {CheckpointOptions{}, CheckpointOptions{.keeps_results = is_product}, kKeepsAll})
    expect_same_either_way([&](bool checkpoints) {
      call(checkpoints, options, part, x).square().sum().backward();
      return take_gradients(*block, x);
    });
}

TEST(ActivationInside, ASlopeOfPartsInsideAPartHasTheBitsOfThePlainCall) {
  torch::nn::Sequential both(block_of(), SmallBlock(6));
  auto block = both[0]->as<SmallBlock>(), other = both[1]->as<SmallBlock>();
  const auto x = input();
  expect_same_either_way([&](bool checkpoints) {
    const auto part = slope_of([=](const torch::Tensor& h) {
      const auto inner = [=](const torch::Tensor& between) { return other->forward(between); };
      return call(checkpoints, {}, inner, torch::tanh(block->forward(h))).square().sum();
    });
    call(checkpoints, {}, part, x).square().sum().backward();
    return take_gradients(*both, x);
  });
}

}  // namespace
}  // namespace fsdp::test
