// activation_checkpoint without ranks: results, gradients and what is kept, beside the plain call.

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "activation/parts.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;

// Storage that somebody made on the way; expired once nobody keeps it.
using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;
Memory memory_of(const torch::Tensor& tensor) {
  return Memory(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

TEST(ActivationCheckpoint, ResultsAndGradientsHaveTheBitsOfThePlainCall) {
  auto block = block_of();
  const auto x = input();
  const auto expected_result = block(x);
  expected_result.square().sum().backward();
  const auto expected = take_gradients(*block, x);
  const auto result = activation_checkpoint(block, x);
  EXPECT_TRUE(torch::equal(expected_result, result));
  result.square().sum().backward();
  expect_equal_bits(expected, take_gradients(*block, x));
}

TEST(ActivationCheckpoint, WhatIsMadeOnTheWayIsNotKept) {
  auto block = block_of();
  const auto x = input();
  for (bool checkpoints : {false, true}) {
    Memory hidden = memory_of(x);
    const auto part = [&hidden, &block](const torch::Tensor& h) {
      const auto between = block->in(h);
      hidden = memory_of(between);
      return block->out(torch::gelu(between));
    };
    const auto result = checkpoints ? activation_checkpoint(part, x) : part(x);
    EXPECT_EQ(hidden.expired(), checkpoints);
    result.sum().backward();
    EXPECT_TRUE(hidden.expired());
  }
}

TEST(ActivationCheckpoint, InputsGoWithBackward) {
  auto block = block_of();
  auto x = torch::randn({4, 6});
  const auto kept = memory_of(x);
  auto result = activation_checkpoint(block, std::move(x));
  x.reset();
  EXPECT_FALSE(kept.expired());
  result.sum().backward();
  EXPECT_TRUE(kept.expired()) << "though the result is still there";
}

TEST(ActivationCheckpoint, PartsInsidePartsHaveTheBitsOfThePlainCall) {
  auto block = block_of(), other = SmallBlock(6);
  const auto x = input();
  int outer_calls = 0, inner_calls = 0;
  const auto inner = [&](const torch::Tensor& h) {
    ++inner_calls;
    return torch::tanh(other(h));
  };
  const auto outer = [&](const torch::Tensor& h) {
    ++outer_calls;
    return torch::tanh(activation_checkpoint(inner, torch::sin(block(h))));
  };
  torch::tanh(inner(torch::sin(block(x)))).sum().backward();
  auto expected = take_gradients(*block, x);
  const auto expected_inside = take_gradients(*other, x);
  inner_calls = 0;
  activation_checkpoint(outer, x).sum().backward();
  expect_equal_bits(expected, take_gradients(*block, x));
  expect_equal_bits(expected_inside, take_gradients(*other, x));
  EXPECT_EQ(outer_calls, 2);
  EXPECT_EQ(inner_calls, 3) << "forward, the outer part again, the inner part again";
}

// The inner part's input belongs to the outer part, which computes it again.
TEST(ActivationCheckpoint, APartInsideAnotherOneKeepsNoInputOfItsOwn) {
  auto block = block_of();
  const auto x = input();
  Memory between = memory_of(x);
  const auto result = activation_checkpoint(
      [&](const torch::Tensor& h) {
        const auto made = torch::sin(h);
        between = memory_of(made);
        return activation_checkpoint(block, made);
      },
      x);
  EXPECT_TRUE(between.expired());
  result.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(ActivationCheckpoint, DropoutDrawsTheSameNumbersAgainAndLeavesTheGeneratorWhereItWas) {
  const auto x = input(64);
  const auto part = [](const torch::Tensor& h) {
    return torch::dropout(torch::dropout(h, 0.5, true).square(), 0.5, true);
  };
  const auto run = [&](bool checkpoints) {
    torch::manual_seed(11);
    (checkpoints ? activation_checkpoint(part, x) : part(x)).sum().backward();
    return std::vector{std::exchange(x.mutable_grad(), torch::Tensor()), torch::rand({3})};
  };
  const auto expected = run(false);
  expect_equal_bits(expected, run(true));
  torch::manual_seed(11);
  activation_checkpoint({.preserve_rng_state = false}, part, x).sum().backward();
  EXPECT_FALSE(torch::equal(expected[0], x.grad())) << "the test sees another mask";
}

TEST(ActivationCheckpoint, AutocastIsAsItWasInForward) {
  auto block = block_of();
  const auto x = input();
  const auto run = [&](bool checkpoints) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    const auto result = checkpoints ? activation_checkpoint(block, x) : block(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    result.sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    return take_gradients(*block, x);
  };
  expect_equal_bits(run(false), run(true));
}

struct Pair {
  torch::Tensor first, second;
  int64_t factor = 0;
};
template <class Visit>
void visit_tensors(Pair& pair, const Visit& visit) {
  visit(pair.first), visit(pair.second);
}

TEST(ActivationCheckpoint, InputsAndResultsAreOfAnyKind) {
  const auto x = input(), y = input().detach();
  const auto part = [](const Pair& pair, const std::vector<torch::Tensor>& list, std::optional<torch::Tensor> none,
                       const std::map<std::string, torch::Tensor>& named, double scale, const std::string& name,
                       const torch::Tensor& undefined) {
    EXPECT_FALSE(none || undefined.defined());
    EXPECT_EQ(name, "name");
    const auto product = pair.first.sin() * pair.second * static_cast<double>(pair.factor);
    return std::tuple(product, std::vector{list[0].exp(), list[1].exp()}, Pair{named.at("x").tanh() * scale, {}, 5});
  };
  const auto run = [&](bool checkpoints) {
    const Pair pair{x, y, 3};
    const std::vector<torch::Tensor> list{y, x};
    const std::map<std::string, torch::Tensor> named{{"x", x}};
    auto [product, both, last] =
        checkpoints ? activation_checkpoint(part, pair, list, std::nullopt, named, 0.5, "name", torch::Tensor())
                    : part(pair, list, std::nullopt, named, 0.5, "name", {});
    EXPECT_FALSE(both[0].requires_grad()) << "nothing that it depends on requires one";
    EXPECT_TRUE(both[1].requires_grad());
    EXPECT_EQ(last.factor, 5);
    (product.sum() + both[1].sum() + last.first.sum()).backward();
    return std::exchange(x.mutable_grad(), torch::Tensor());
  };
  expect_equal_bits({run(false)}, {run(true)});
}

TEST(ActivationCheckpoint, ParametersGetGradientsThoughNoInputRequiresAny) {
  auto block = block_of();
  const auto x = input().detach();
  block(x).square().sum().backward();
  const auto expected = take_gradients(*block, x);
  activation_checkpoint(block, x).square().sum().backward();
  expect_equal_bits(expected, take_gradients(*block, x));
}

TEST(ActivationCheckpoint, WithoutAGradientNothingIsKeptNorComputedAgain) {
  int calls = 0;
  const auto part = [&](const torch::Tensor& h) {
    ++calls;
    return h.exp();
  };
  auto x = torch::randn({3});
  const auto kept = memory_of(x);
  const auto result = activation_checkpoint(part, x);
  EXPECT_FALSE(result.requires_grad());
  x.reset();
  EXPECT_TRUE(kept.expired());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(activation_checkpoint(part, torch::randn({3}).requires_grad_()).requires_grad());
  EXPECT_EQ(calls, 2);
}

TEST(ActivationCheckpoint, GradOfSomeInputsAndDoubleBackwardAreThoseOfThePlainCall) {
  auto block = block_of();
  const auto x = input();
  const auto run = [&](bool checkpoints) {
    const auto result = checkpoints ? activation_checkpoint(block, x) : block(x);
    const auto slope = torch::autograd::grad({result.square().sum()}, {x}, {}, /*retain_graph=*/true,
                                             /*create_graph=*/true)[0];
    slope.square().sum().backward();
    return take_gradients(*block, x);
  };
  expect_equal_bits(run(false), run(true));
}

TEST(ActivationCheckpoint, AGraphThatIsKeptIsComputedAgainForEachBackward) {
  auto block = block_of();
  const auto x = input();
  int calls = 0;
  const auto result = activation_checkpoint(
      [&](const torch::Tensor& h) {
        ++calls;
        return torch::tanh(block(h));
      },
      x);
  const auto both = result.sum() + result.square().sum();  // used twice
  both.backward({}, /*retain_graph=*/true);
  const auto expected = take_gradients(*block, x);
  both.backward();
  expect_equal_bits(expected, take_gradients(*block, x));
  EXPECT_EQ(calls, 3);
}

TEST(ActivationCheckpoint, APartIsUsedInsideAndOutsideOfOneForward) {
  auto block = block_of();
  const auto x = input();
  const auto run = [&](bool checkpoints) {
    const auto again = checkpoints ? activation_checkpoint(block, block(x)) : block(block(x));
    block(again).square().sum().backward();
    return take_gradients(*block, x);
  };
  expect_equal_bits(run(false), run(true));
}

TEST(ActivationCheckpoint, WhatFollowsTheLastTensorThatIsWantedIsNotComputedAgain) {
  int before = 0, after = 0;
  const auto x = input();
  const auto result = activation_checkpoint(
      [&](const torch::Tensor& h) {
        ++before;
        const auto wanted = h.exp();
        ++after;
        return wanted + 1;
      },
      x);
  result.sum().backward();
  EXPECT_EQ(before, 2);
  EXPECT_EQ(after, 1);
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
}

struct Doubled : torch::autograd::Function<Doubled> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    context->save_for_backward({x, x.exp()});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto twice = context->get_saved_variables();  // each asked for again
    return {gradients[0] * 2 * context->get_saved_variables()[0] + 0 * twice[1]};
  }
};

TEST(ActivationCheckpoint, WhatAFunctionOfTheUsersSavesIsComputedAgain) {
  const auto x = input();
  activation_checkpoint([](const torch::Tensor& h) { return Doubled::apply(h.sin()); }, x).sum().backward();
  const auto found = std::exchange(x.mutable_grad(), torch::Tensor());
  Doubled::apply(x.sin()).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), found));
}

TEST(ActivationCheckpoint, RunningStatisticsTakeABatchOnce) {
  const auto x = input();
  const auto run = [&](bool checkpoints) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6), torch::nn::GELU());
    (checkpoints ? activation_checkpoint(net, x) : net->forward(x)).sum().backward();
    auto left = take_gradients(*net, x);
    for (const auto& buffer : net->buffers()) left.push_back(buffer);
    return left;
  };
  expect_equal_bits(run(false), run(true));
}

TEST(ActivationCheckpoint, AnExceptionOfTheSecondRunComesOutOfBackwardAndLeavesNothingBehind) {
  auto block = block_of();
  const auto x = input();
  bool fails = false;
  const auto part = [&](const torch::Tensor& h) {
    const auto half = torch::tanh(h);
    if (fails) throw std::runtime_error("no more");
    return block(half);
  };
  const auto result = activation_checkpoint(part, x);
  fails = true;
  EXPECT_THROW(result.sum().backward({}, /*retain_graph=*/true), std::runtime_error);
  take_gradients(*block, x);
  fails = false;
  result.sum().backward();
  const auto found = take_gradients(*block, x);
  part(x).sum().backward();
  expect_equal_bits(take_gradients(*block, x), found);
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

// The gradient of `weights`, which are others when backward runs, unseen by autograd. It is the plain call's if what
// depends on them is not computed again.
template <class Part>
torch::Tensor gradient_with_others(const Part& part, const CheckpointOptions& options, const torch::Tensor& x,
                                   const std::vector<torch::Tensor>& weights) {
  std::vector<torch::Tensor> before;
  for (const auto& w : weights) before.push_back(w.detach().clone());
  const auto result = activation_checkpoint(options, part, x);
  for (const auto& w : weights) w.variable_data().mul_(2);
  result.sum().backward();
  for (size_t i = 0; i < weights.size(); ++i) weights[i].variable_data().copy_(before[i]);
  return std::exchange(weights[0].mutable_grad(), torch::Tensor());
}

TEST(ActivationCheckpoint, KeptResultsAreNotComputedAgain) {
  const auto x = input().detach(), w = torch::randn({6, 6}).requires_grad_();
  const auto part = [&](const torch::Tensor& h) { return torch::gelu(torch::mm(h, w)); };
  part(x).sum().backward();
  const auto expected = std::exchange(w.mutable_grad(), torch::Tensor());
  EXPECT_TRUE(torch::equal(gradient_with_others(part, {.keeps_results = is_product}, x, {w}), expected));
  EXPECT_FALSE(torch::equal(gradient_with_others(part, {}, x, {w}), expected))
      << "the test sees what is computed again";
}

TEST(ActivationCheckpoint, AProductIsKeptWithWhatThePartWritesToItAfterwards) {
  torch::manual_seed(4);
  const auto x = torch::randn({2, 4, 6}), w = torch::randn({6, 6}).requires_grad_(),
             b = torch::randn({6}).requires_grad_();
  using Part = std::function<torch::Tensor(const torch::Tensor&)>;
  const std::map<std::string, Part> parts{
      {"a linear layer", [&](const auto& h) { return torch::linear(h, w, b).sin(); }},
      {"of an input that does not lie in order",
       [&](const auto& h) { return torch::linear(h.transpose(0, 1), w, b).sin(); }},
      {"bias in place", [&](const auto& h) { return torch::matmul(h, w).add_(b).sin(); }},
      {"bias and more in place", [&](const auto& h) { return torch::matmul(h, w).add_(b).mul_(3).relu_().square(); }},
      {"a view in place", [&](const auto& h) {
         auto product = torch::mm(h.flatten(0, 1), w);
         product.narrow(0, 0, 2).add_(b);
         return product.sin();
       }}};
  for (const auto& [name, part] : parts) {
    part(x).sum().backward();
    const auto expected = std::exchange(w.mutable_grad(), torch::Tensor());
    for (int pass = 0; pass < 2; ++pass)
      EXPECT_TRUE(torch::equal(gradient_with_others(part, {.keeps_results = is_product}, x, {w, b}), expected)) << name;
    EXPECT_FALSE(torch::equal(gradient_with_others(part, {}, x, {w, b}), expected)) << name << " tells";
  }
}

TEST(ActivationCheckpoint, AProductWithItsBiasIsKeptForEachBackwardOfAGraphThatIsKept) {
  torch::manual_seed(4);
  const auto x = torch::randn({2, 4, 6}), w = torch::randn({6, 6}).requires_grad_(), b = torch::randn({6});
  const auto part = [&](const torch::Tensor& h) {
    const auto product = torch::matmul(h, w).add_(b);
    return std::vector<torch::Tensor>{product, product.sin()};
  };
  part(x)[1].sum().backward();
  const auto expected = std::exchange(w.mutable_grad(), torch::Tensor());
  const auto results = activation_checkpoint({.keeps_results = is_product}, part, x);
  const auto others = results[0].cos().sum();  // keeps the product, whose version must stay
  w.variable_data().mul_(2);
  for (int pass = 0; pass < 2; ++pass) {
    results[1].sum().backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(std::exchange(w.mutable_grad(), torch::Tensor()), expected)) << pass;
  }
  EXPECT_NO_THROW(others.backward());
}

TEST(ActivationCheckpoint, AResultThatIsWrittenAfterItWasReadIsComputedAgain) {
  const auto x = input(), w = torch::randn({6, 6});
  using Part = std::function<torch::Tensor(const torch::Tensor&)>;
  const std::map<std::string, Part> parts{{"by one operator",
                                           [&](const torch::Tensor& h) {
                                             auto product = torch::mm(h, w);
                                             const auto sum = product.sum();
                                             return product.mul_(3).sin() * sum;
                                           }},
                                          {"in a list",
                                           [&](const torch::Tensor& h) {
                                             auto product = torch::mm(h, w);
                                             const auto twice = torch::cat({product, product});
                                             return product.mul_(3).sin() * twice.sum();
                                           }},
                                          {"through a view",
                                           [&](const torch::Tensor& h) {
                                             auto product = torch::matmul(h.unsqueeze(0), w);
                                             const auto sum = product.squeeze(0).sum();
                                             return product.mul_(3).sin() * sum;
                                           }},
                                          {"by an operator that writes several", [&](const torch::Tensor& h) {
                                             auto one = torch::mm(h, w), other = torch::mm(h, w);
                                             torch::_foreach_mul_({one, other}, 3);
                                             return one.sin() * other.cos();
                                           }}};
  for (const auto& [name, part] : parts) {
    part(x).sum().backward();
    const auto expected = std::exchange(x.mutable_grad(), torch::Tensor());
    activation_checkpoint({.keeps_results = is_product}, part, x).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), expected)) << name;
    x.mutable_grad() = torch::Tensor();
  }
}

TEST(ActivationCheckpoint, AResultThatIsWrittenAfterThePartIsComputedAgain) {
  const auto x = input(), w = torch::randn({6, 6});
  for (bool is_view : {false, true}) {  // of the product, with versions of its own
    const auto part = [&](const torch::Tensor& h) {
      const auto product = is_view ? torch::matmul(h.unsqueeze(0), w) : torch::mm(h, w);
      return std::vector<torch::Tensor>{product, (product * 2).sin()};  // autograd keeps the product's double
    };
    part(x)[1].sum().backward();
    const auto expected = std::exchange(x.mutable_grad(), torch::Tensor());
    const auto results = activation_checkpoint({.keeps_results = is_product}, part, x);
    results[0].mul_(3);
    results[1].sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), expected)) << is_view;
    x.mutable_grad() = torch::Tensor();
  }
}

TEST(ActivationCheckpoint, EverythingMayBeKeptAndRandomNumbersAreDrawnAgain) {
  auto block = block_of();
  const auto x = input();
  const auto part = [&](const torch::Tensor& h) {
    return torch::dropout(block(torch::dropout(h, 0.5, true)), 0.5, true);
  };
  const auto run = [&](bool checkpoints) {
    torch::manual_seed(2);
    const CheckpointOptions all{.keeps_results = [](std::string_view) { return true; }};
    (checkpoints ? activation_checkpoint(all, part, x) : part(x)).square().sum().backward();
    return take_gradients(*block, x);
  };
  expect_equal_bits(run(false), run(true));
}

TEST(ActivationCheckpoint, OffloadOnTheCpuChangesNothing) {
  auto block = block_of();
  const auto x = input();
  block(x).sum().backward();
  const auto expected = take_gradients(*block, x);
  activation_checkpoint({.offload_inputs = true}, block, x).sum().backward();
  expect_equal_bits(expected, take_gradients(*block, x));
}

TEST(ActivationCheckpointMisuse, AnInputThatFnWritesIsRefusedAtOnce) {
  const auto x = torch::randn({3});
  const auto w = torch::randn({3}).requires_grad_();
  EXPECT_THAT(error_of([&] { activation_checkpoint([&](const torch::Tensor& h) { return (h.add_(1) * w); }, x); }),
              HasSubstr("tensor 0 of them written in place when fn had run"));
}

TEST(ActivationCheckpointMisuse, AnInputThatIsWrittenBeforeBackwardIsRefusedThere) {
  auto block = block_of();
  auto first = torch::randn({4, 6}), second = torch::randn({4, 6});
  const auto result = activation_checkpoint(
      [&](const torch::Tensor& a, const torch::Tensor& b) { return block(a * b); }, first, second);
  second.add_(1);
  EXPECT_THAT(error_of([&] { result.sum().backward(); }),
              HasSubstr("tensor 1 of them written in place before backward"));
}

TEST(ActivationCheckpointMisuse, APartThatDoesSomethingElseTheSecondTimeIsRefused) {
  const auto x = input();
  int calls = 0;
  const auto keeps_less = [&](const torch::Tensor& h) { return ++calls % 2 == 1 ? h.sin().exp() : h * 2; };
  EXPECT_THAT(error_of([&] { activation_checkpoint(keeps_less, x).sum().backward(); }),
              HasSubstr("autograd keeps 0 tensors of it and kept 2"));
  const auto keeps_others = [&](const torch::Tensor& h) { return h.narrow(1, 0, ++calls % 2 == 1 ? 3 : 2).sin(); };
  EXPECT_THAT(error_of([&] { activation_checkpoint(keeps_others, x).sum().backward(); }),
              HasSubstr("tensor 0 is Float[4, 2] on cpu and was Float[4, 3] on cpu"));
}

}  // namespace
}  // namespace fsdp::test
