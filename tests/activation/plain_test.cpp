// Compares activation_checkpoint without ranks with the plain call: results, gradients and kept memory.

#include <ATen/autocast_mode.h>

#include <map>

#include "activation/parts.h"

namespace fsdp::test {
namespace {

// Memory of an intermediate tensor. The pointer expires when no one keeps the memory.
using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;
Memory memory_of(const torch::Tensor& tensor) {
  return Memory(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

// The test tries each kind of options, on inputs that need a gradient and on inputs that need none.
TEST(ActivationCheckpoint, ResultsAndGradientsHaveTheBitsOfThePlainCall) {
  auto block = block_of();
  for (const auto& options : {CheckpointOptions{}, CheckpointOptions{.offload_inputs = true}, kKeepsAll})
    for (const bool needs_gradient : {true, false})
      expect_same_either_way([&](bool checkpoints) {
        const auto x = input().detach().requires_grad_(needs_gradient);
        const auto result = call(checkpoints, options, block, x);
        result.square().sum().backward();
        auto left = take_gradients(*block, x);
        left.push_back(result.detach());
        return left;
      });
}

TEST(ActivationCheckpoint, WhatIsMadeOnTheWayIsNotKeptAndInputsGoWithBackward) {
  auto block = block_of();
  for (bool checkpoints : {false, true}) {
    auto x = input().detach();
    const auto kept = memory_of(x);
    Memory hidden = kept;
    const auto part = [&hidden, &block](const torch::Tensor& h) {
      const auto between = block->in(h);
      hidden = memory_of(between);
      return block->out(torch::gelu(between));
    };
    const auto result = checkpoints ? activation_checkpoint(part, x) : part(x);
    x.reset();
    EXPECT_EQ(hidden.expired(), checkpoints);
    EXPECT_FALSE(kept.expired());
    result.sum().backward();
    EXPECT_TRUE(hidden.expired());
    EXPECT_TRUE(kept.expired()) << "though the result is still there";
  }
}

TEST(ActivationCheckpoint, PartsInsidePartsHaveTheBitsOfThePlainCall) {
  auto block = block_of(), other = SmallBlock(6);
  const auto x = input();
  int outer_calls = 0, inner_calls = 0;
  const auto inner = [&](const torch::Tensor& h) {
    ++inner_calls;
    return torch::tanh(other(h));
  };
  Memory between = memory_of(x);
  const auto outer = [&](const torch::Tensor& h) {
    ++outer_calls;
    const auto made = torch::sin(block(h));
    between = memory_of(made);
    return torch::tanh(activation_checkpoint(inner, made));
  };
  torch::tanh(inner(torch::sin(block(x)))).sum().backward();
  auto expected = take_gradients(*block, x);
  const auto expected_inside = take_gradients(*other, x);
  inner_calls = 0;
  const auto result = activation_checkpoint(outer, x);
  EXPECT_TRUE(between.expired()) << "the outer part computes the inner one's input again";
  result.sum().backward();
  expect_equal_bits(expected, take_gradients(*block, x));
  expect_equal_bits(expected_inside, take_gradients(*other, x));
  EXPECT_EQ(outer_calls, 2);
  EXPECT_EQ(inner_calls, 3) << "forward, the outer part again, the inner part again";
}

TEST(ActivationCheckpoint, DropoutDrawsTheSameNumbersAgainAndLeavesTheGeneratorWhereItWas) {
  auto block = block_of();
  const auto x = input();
  const auto part = [&](const torch::Tensor& h) {
    return torch::dropout(block(torch::dropout(h, 0.5, true)), 0.5, true);
  };
  const auto run = [&](bool checkpoints, const CheckpointOptions& options) {
    torch::manual_seed(11);
    call(checkpoints, options, part, x).square().sum().backward();
    auto left = take_gradients(*block, x);
    left.push_back(torch::rand({3}));
    return left;
  };
  const auto expected = run(false, {});
  for (const auto& options : {CheckpointOptions{}, kKeepsAll}) expect_equal_bits(expected, run(true, options));
  EXPECT_FALSE(torch::equal(expected[0], run(true, {.preserve_rng_state = false})[0])) << "the test sees another mask";
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
  expect_same_either_way([&](bool checkpoints) {
    auto [product, both, last] = call(checkpoints, {}, part, Pair{x, y, 3}, std::vector{y, x}, std::nullopt,
                                      std::map<std::string, torch::Tensor>{{"x", x}}, 0.5, "name", torch::Tensor());
    EXPECT_FALSE(both[0].requires_grad()) << "nothing that it depends on requires one";
    EXPECT_TRUE(both[1].requires_grad());
    EXPECT_EQ(last.factor, 5);
    (product.sum() + both[1].sum() + last.first.sum()).backward();
    return std::vector{std::exchange(x.mutable_grad(), torch::Tensor())};
  });
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

TEST(ActivationCheckpoint, AGraphThatIsKeptIsComputedAgainForEachBackwardAndKeepsNothingBetweenThem) {
  auto block = block_of();
  const auto x = input();
  auto between = memory_of(x);
  int calls = 0;
  const auto result = activation_checkpoint(
      [&](const torch::Tensor& h) {
        ++calls;
        const auto exponential = h.exp();
        between = memory_of(exponential);
        return torch::tanh(block(exponential));
      },
      x);
  const auto both = result.sum() + result.square().sum();  // the result is used twice
  both.backward({}, /*retain_graph=*/true);
  EXPECT_TRUE(between.expired());
  const auto expected = take_gradients(*block, x);
  both.backward();
  expect_equal_bits(expected, take_gradients(*block, x));
  EXPECT_EQ(calls, 3);
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
    const auto twice = context->get_saved_variables();  // asks for each saved variable again
    return {gradients[0] * 2 * context->get_saved_variables()[0] + 0 * twice[1]};
  }
};

TEST(ActivationCheckpoint, StepsOfManyKindsHaveTheBitsOfThePlainOnes) {
  auto block = block_of();
  const auto x = input();
  const std::map<std::string, std::function<void(bool checkpoints)>> steps{
      {"a double backward",
       [&](bool checkpoints) {
         const auto sum = call(checkpoints, {}, block, x).square().sum();
         torch::autograd::grad({sum}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0]
             .square()
             .sum()
             .backward();
       }},
      {"inside and outside of a part",
       [&](bool checkpoints) { block(call(checkpoints, {}, block, block(x))).square().sum().backward(); }},
      {"a function of the user's that saves",
       [&](bool checkpoints) {
         call(checkpoints, {}, [](const torch::Tensor& h) { return Doubled::apply(h.sin()); }, x).sum().backward();
       }},
      {"autocast as it was in forward", [&](bool checkpoints) {
         at::autocast::set_autocast_enabled(at::kCPU, true);
         at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
         const auto result = call(checkpoints, {}, block, x);
         at::autocast::clear_cache();
         at::autocast::set_autocast_enabled(at::kCPU, false);
         result.sum().backward();
         EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
         EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
       }}};
  for (const auto& [name, step] : steps) {
    SCOPED_TRACE(name);
    expect_same_either_way([&, take = step](bool checkpoints) {
      take(checkpoints);
      return take_gradients(*block, x);
    });
  }
}

TEST(ActivationCheckpoint, RunningStatisticsTakeABatchOnce) {
  const auto x = input();
  expect_same_either_way([&](bool checkpoints) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6), torch::nn::GELU());
    (checkpoints ? activation_checkpoint(net, x) : net->forward(x)).sum().backward();
    auto left = take_gradients(*net, x);
    for (const auto& buffer : net->buffers()) left.push_back(buffer);
    return left;
  });
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

TEST(ActivationCheckpoint, APartThatDoesSomethingElseTheSecondTimeIsRefused) {
  const auto x = input();
  int calls = 0;
  const auto keeps_less = [&](const torch::Tensor& h) { return ++calls % 2 == 1 ? h.sin().exp() : h * 2; };
  expect_refused([&] { activation_checkpoint(keeps_less, x).sum().backward(); },
                 "autograd saves 0 tensors for fn in backward, but saved 2 in forward");
  const auto keeps_others = [&](const torch::Tensor& h) { return h.narrow(1, 0, ++calls % 2 == 1 ? 3 : 2).sin(); };
  expect_refused([&] { activation_checkpoint(keeps_others, x).sum().backward(); },
                 "tensor 0 of those that autograd saves for fn is Float[4, 2] on cpu in backward, but in forward it "
                 "was Float[4, 3] on cpu");
}

}  // namespace
}  // namespace fsdp::test
