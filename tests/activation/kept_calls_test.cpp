// Tests of kept results: which operators are called twice, and what happens if a kept result is written.

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <map>

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

// Fused attention on an accelerator returns such results.
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

// Returns the gradients of `weights`. Their values change before backward, without autograd's notice, so the gradients
// equal those of the plain call only if nothing that depends on the weights is recomputed.
template <class Part>
std::vector<torch::Tensor> gradients_with_others(const Part& part, const CheckpointOptions& options,
                                                 const torch::Tensor& x, const std::vector<torch::Tensor>& weights) {
  std::vector<torch::Tensor> before, gradients;
  for (const auto& w : weights) before.push_back(w.detach().clone());
  const auto result = activation_checkpoint(options, part, x);
  for (const auto& w : weights) w.variable_data().mul_(2);
  result.sum().backward();
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i].variable_data().copy_(before[i]);
    gradients.push_back(std::exchange(weights[i].mutable_grad(), torch::Tensor()));
  }
  return gradients;
}

using Part = std::function<torch::Tensor(const torch::Tensor&)>;

TEST(ActivationKeptCalls, AProductIsKeptWithWhatThePartWritesToItAfterwards) {
  torch::manual_seed(4);
  const auto x = torch::randn({2, 4, 6}), w = torch::randn({6, 6}).requires_grad_(),
             b = torch::randn({6}).requires_grad_(), value = torch::randn({2, 3, 4, 6}).requires_grad_();
  const std::map<std::string, Part> parts{
      {"nothing", [&](const auto& h) { return torch::gelu(torch::matmul(h, w)); }},
      {"a linear layer", [&](const auto& h) { return torch::linear(h, w, b).sin(); }},
      {"of an input that does not lie in order",
       [&](const auto& h) { return torch::linear(h.transpose(0, 1), w, b).sin(); }},
      {"bias in place", [&](const auto& h) { return torch::matmul(h, w).add_(b).sin(); }},
      {"bias and more in place", [&](const auto& h) { return torch::matmul(h, w).add_(b).mul_(3).relu_().square(); }},
      {"a view in place",
       [&](const auto& h) {
         auto product = torch::mm(h.flatten(0, 1), w);
         product.narrow(0, 0, 2).add_(b);
         return product.sin();
       }},
      {"fused attention", [&](const auto& h) {
         const auto keys = h.unsqueeze(1).expand({2, 3, 4, 6});
         return torch::sin(torch::scaled_dot_product_attention(keys, keys, value));
       }}};
  const std::vector<torch::Tensor> weights{w, b, value};
  for (const auto& [name, part] : parts) {
    SCOPED_TRACE(name);
    part(x).sum().backward();
    std::vector<torch::Tensor> expected;
    for (const auto& weight : weights) expected.push_back(std::exchange(weight.mutable_grad(), torch::Tensor()));
    for (int pass = 0; pass < 2; ++pass)
      expect_equal_bits(expected, gradients_with_others(part, {.keeps_results = is_product}, x, weights));
    const auto others = gradients_with_others(part, {}, x, weights);
    const size_t of = expected[0].defined() ? 0 : 2;
    EXPECT_FALSE(torch::equal(expected[of], others[of])) << "the test sees what is computed again";
  }
}

TEST(ActivationKeptCalls, AProductWithItsBiasIsKeptForEachBackwardOfAGraphThatIsKept) {
  torch::manual_seed(4);
  const auto x = torch::randn({2, 4, 6}), w = torch::randn({6, 6}).requires_grad_(), b = torch::randn({6});
  const auto part = [&](const torch::Tensor& h) {
    const auto product = torch::matmul(h, w).add_(b);
    return std::vector<torch::Tensor>{product, product.sin()};
  };
  part(x)[1].sum().backward();
  const auto expected = std::exchange(w.mutable_grad(), torch::Tensor());
  const auto results = activation_checkpoint({.keeps_results = is_product}, part, x);
  const auto others = results[0].cos().sum();  // keeps the product, whose version must not change
  w.variable_data().mul_(2);
  for (int pass = 0; pass < 2; ++pass) {
    results[1].sum().backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(std::exchange(w.mutable_grad(), torch::Tensor()), expected)) << pass;
  }
  EXPECT_NO_THROW(others.backward());
}

// A result is written after it was read, by the part itself or after the part.
TEST(ActivationKeptCalls, AResultThatIsWrittenAfterItWasReadIsComputedAgain) {
  const auto x = input(), w = torch::randn({6, 6});
  using Results = std::vector<torch::Tensor>;
  const auto written_by_itself = [](torch::Tensor product, const torch::Tensor& read) {
    return Results{product.mul_(3).sin() * read.sum()};
  };
  const std::map<std::string, std::function<Results(const torch::Tensor&)>> parts{
      {"by one operator",
       [&](const torch::Tensor& h) {
         const auto product = torch::mm(h, w);
         return written_by_itself(product, product.sum());
       }},
      {"in a list",
       [&](const torch::Tensor& h) {
         const auto product = torch::mm(h, w);
         return written_by_itself(product, torch::cat({product, product}));
       }},
      {"through a view",
       [&](const torch::Tensor& h) {
         const auto product = torch::matmul(h.unsqueeze(0), w);
         return written_by_itself(product, product.squeeze(0).sum());
       }},
      {"by an operator that writes several",
       [&](const torch::Tensor& h) {
         auto one = torch::mm(h, w), other = torch::mm(h, w);
         torch::_foreach_mul_({one, other}, 3);
         return Results{one.sin() * other.cos()};
       }},
      // Autograd keeps the doubled product.
      {"after the part",
       [&](const torch::Tensor& h) {
         const auto product = torch::mm(h, w);
         return Results{(product * 2).sin(), product};
       }},
      {"after the part, of which it is a view with versions of its own", [&](const torch::Tensor& h) {
         const auto product = torch::matmul(h.unsqueeze(0), w);
         return Results{(product * 2).sin(), product};
       }}};
  for (const auto& [name, part] : parts) {
    part(x)[0].sum().backward();
    const auto expected = std::exchange(x.mutable_grad(), torch::Tensor());
    const auto results = activation_checkpoint({.keeps_results = is_product}, part, x);
    if (results.size() > 1) results[1].mul_(3);
    results[0].sum().backward();
    EXPECT_TRUE(torch::equal(std::exchange(x.mutable_grad(), torch::Tensor()), expected)) << name;
  }
}

// Autocast casts a layer's weight once in forward, or twice if its cache is off.
TEST(ActivationKeptCalls, AutocastCastsAWeightAsOftenAsItLikes) {
  torch::manual_seed(4);
  torch::nn::Linear layer(6, 6);
  const auto x = input();
  const auto part = [&](const torch::Tensor& h) { return torch::gelu(layer(torch::tanh(layer(h)))); };
  const auto run = [&](bool checkpoints, bool is_cast_before) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    auto h = is_cast_before ? layer(x) : x;
    h = call(checkpoints, kKeepsAll, part, h);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    h.sum().backward();
    return take_gradients(*layer, x);
  };
  for (bool is_cast_before : {false, true}) expect_equal_bits(run(false, is_cast_before), run(true, is_cast_before));
}

}  // namespace
}  // namespace fsdp::test
