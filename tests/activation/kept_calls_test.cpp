// Results that are kept: which calls of operators are made twice.

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "activation/parts.h"

namespace fsdp::test {
namespace {

int counted_calls = 0;

std::tuple<at::Tensor, at::Tensor, int64_t> counted(const at::Tensor& x) {
  ++counted_calls;
  return {x * 2, at::Tensor(), 3};
}

TORCH_LIBRARY(fsdp_test_activation, library) {
  library.def("counted(Tensor x) -> (Tensor, Tensor, int)");
  library.impl("counted", c10::DispatchKey::CPU, &counted);
}

// As fused attention on an accelerator.
TEST(ActivationKeptCalls, ACallThatReturnsNumbersAndTensorsThatAreNotThereIsKept) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("fsdp_test_activation::counted", "")
                      .typed<std::tuple<at::Tensor, at::Tensor, int64_t>(const at::Tensor&)>();
  const auto x = input();
  const auto part = [&](const torch::Tensor& h) {
    const auto [twice, nothing, number] = op.call(h.detach());
    EXPECT_FALSE(nothing.defined());
    return torch::sin(h * twice * number);
  };
  part(x).sum().backward();
  const auto expected = std::exchange(x.mutable_grad(), torch::Tensor());
  const auto keeps = [](std::string_view name) { return name == "fsdp_test_activation::counted"; };
  for (bool is_kept : {false, true}) {
    counted_calls = 0;
    activation_checkpoint({.keeps_results = is_kept ? keeps : std::function<bool(std::string_view)>()}, part, x)
        .sum()
        .backward();
    EXPECT_EQ(counted_calls, is_kept ? 1 : 2);
    EXPECT_TRUE(torch::equal(std::exchange(x.mutable_grad(), torch::Tensor()), expected));
  }
}

TEST(ActivationKeptCalls, FusedAttentionIsAProduct) {
  torch::manual_seed(4);
  const auto x = torch::randn({2, 3, 8, 4}), value = torch::randn({2, 3, 8, 4}).requires_grad_();
  const auto part = [&](const torch::Tensor& h) { return torch::sin(torch::scaled_dot_product_attention(h, h, value)); };
  // What is made of `value` after forward differs, and LibTorch is not told.
  const auto run = [&](const std::function<torch::Tensor()>& forward) {
    const auto before = value.detach().clone();
    const auto result = forward();
    value.variable_data().mul_(2);
    result.sum().backward();
    value.variable_data().copy_(before);
    return std::exchange(value.mutable_grad(), torch::Tensor());
  };
  const auto expected = run([&] { return part(x); });
  EXPECT_TRUE(torch::equal(run([&] { return activation_checkpoint({.keeps_results = is_product}, part, x); }), expected));
  EXPECT_FALSE(torch::equal(run([&] { return activation_checkpoint(part, x); }), expected)) << "the test tells";
}

// Autocast casts a layer's weight once in forward, and twice where its cache is off.
TEST(ActivationKeptCalls, AutocastCastsAWeightAsOftenAsItLikes) {
  torch::manual_seed(4);
  torch::nn::Linear layer(6, 6);
  const auto x = input();
  const auto part = [&](const torch::Tensor& h) { return torch::gelu(layer(torch::tanh(layer(h)))); };
  const auto run = [&](bool checkpoints, bool is_cast_before) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    auto h = is_cast_before ? layer(x) : x;
    const CheckpointOptions all{.keeps_results = [](std::string_view) { return true; }};
    h = checkpoints ? activation_checkpoint(all, part, h) : part(h);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    h.sum().backward();
    return take_gradients(*layer, x);
  };
  for (bool is_cast_before : {false, true}) expect_equal_bits(run(false, is_cast_before), run(true, is_cast_before));
}

}  // namespace
}  // namespace fsdp::test
