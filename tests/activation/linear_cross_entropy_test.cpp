// Compares the loss that computes its logits in parts with the loss that computes them at once.

#include <fsdp/error.h>
#include <fsdp/linear_cross_entropy.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/counted_memory.h"

namespace fsdp::test {
namespace {

namespace F = torch::nn::functional;

struct Case {
  int64_t rows, dim, vocabulary;
};

struct Operands {
  torch::Tensor x, weight, targets;
};

Operands operands(const Case& sizes, torch::Dtype dtype) {
  torch::manual_seed(1);
  const auto options = torch::TensorOptions(dtype).requires_grad(true);
  return {torch::randn({sizes.rows, sizes.dim}, options), torch::randn({sizes.vocabulary, sizes.dim}, options),
          torch::randint(sizes.vocabulary, {sizes.rows}, torch::kInt64)};
}

torch::Tensor expected_loss(const Operands& of) { return F::cross_entropy(F::linear(of.x, of.weight), of.targets); }

torch::Tensor loss(const Operands& of) { return linear_cross_entropy(of.x, of.weight, of.targets); }

TEST(LinearCrossEntropy, EqualsLinearAndCrossEntropyInOnePartAndInSeveral) {
  // With a large vocabulary, a part has 64 rows. The cases have parts of 1; of 40; of 64; of 64, 64 and 22 rows.
  for (const auto& [sizes, dtype] : {std::pair{Case{1, 3, 5}, torch::kFloat},
                                     {Case{40, 8, 50}, torch::kDouble},
                                     {Case{64, 4, 70000}, torch::kDouble},
                                     {Case{150, 4, 70000}, torch::kFloat}}) {
    SCOPED_TRACE(sizes.rows);
    const double tolerance = dtype == torch::kFloat ? 2e-5 : 1e-12;
    const auto found = operands(sizes, dtype), expected = operands(sizes, dtype);
    const auto value = loss(found), right = expected_loss(expected);
    EXPECT_EQ(value.scalar_type(), dtype);
    EXPECT_TRUE(torch::allclose(value, right, tolerance, tolerance)) << value << right;
    // The losses are scaled, as they are with micro-batches.
    (value * 0.25).backward();
    (right * 0.25).backward();
    EXPECT_TRUE(torch::allclose(found.x.grad(), expected.x.grad(), tolerance, tolerance * 1e-2));
    EXPECT_TRUE(torch::allclose(found.weight.grad(), expected.weight.grad(), tolerance, tolerance * 1e-2));
    EXPECT_GT(found.weight.grad().abs().max().item<double>(), 1e-6);
  }
}

TEST(LinearCrossEntropy, AddsToGradientsAndRunsBackwardAgain) {
  const auto found = operands({40, 8, 50}, torch::kDouble), expected = operands({40, 8, 50}, torch::kDouble);
  const auto value = loss(found);
  value.backward({}, /*retain_graph=*/true);
  value.backward();
  (2 * expected_loss(expected)).backward();
  EXPECT_TRUE(torch::allclose(found.weight.grad(), expected.weight.grad()));
  EXPECT_TRUE(torch::allclose(found.x.grad(), expected.x.grad()));
}

TEST(LinearCrossEntropy, IsTheSameWithoutGradientsAndRefusesSecondDerivatives) {
  const auto of = operands({150, 4, 70000}, torch::kDouble);
  EXPECT_THROW(torch::autograd::grad({loss(of)}, {of.x}, {}, {}, /*create_graph=*/true), UsageError);
  const torch::NoGradGuard no_grad;
  const auto value = loss(of);
  EXPECT_FALSE(value.requires_grad());
  EXPECT_TRUE(torch::allclose(value, expected_loss(of)));
}

TEST(LinearCrossEntropy, LeavesOutRowsWhoseTargetIsTheIgnoredOne) {
  for (const auto& sizes : {Case{40, 8, 50}, Case{150, 4, 70000}}) {
    auto found = operands(sizes, torch::kDouble), expected = operands(sizes, torch::kDouble);
    found.targets.slice(0, 3, sizes.rows, 4).fill_(-100);
    expected.targets.copy_(found.targets);
    loss(found).backward();
    expected_loss(expected).backward();
    EXPECT_TRUE(torch::allclose(loss(found), expected_loss(expected)));
    EXPECT_TRUE(torch::allclose(found.x.grad(), expected.x.grad()));
    EXPECT_TRUE(torch::allclose(found.weight.grad(), expected.weight.grad()));
  }
  auto none = operands({2, 3, 5}, torch::kFloat);
  const auto value = linear_cross_entropy(none.x, none.weight, torch::full({2}, 7, torch::kLong), 7);
  value.backward();
  EXPECT_EQ(value.item<double>(), 0);
  EXPECT_EQ(none.x.grad().abs().max().item<double>(), 0);
}

TEST(LinearCrossEntropy, RefusesOtherSizesDtypesAndTargetsThatAreNoClasses) {
  const auto x = torch::ones({3, 2}), weight = torch::ones({5, 2}), targets = torch::zeros({3}, torch::kLong);
  for (const auto& wrong : std::vector<Operands>{{{}, weight, targets},
                                                 {x.unsqueeze(0), weight, targets},
                                                 {x, weight.t(), targets},
                                                 {x, weight, targets.slice(0, 1)},
                                                 {x, weight.to(torch::kDouble), targets},
                                                 {x, weight, targets.to(torch::kInt)},
                                                 {x, weight, torch::full({3}, 5, torch::kLong)},
                                                 {x, weight, torch::full({3}, -1, torch::kLong)}})
    EXPECT_THROW(static_cast<void>(loss(wrong)), UsageError);
}

TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  const Case sizes{300, 4, 70000};
  const auto of = operands(sizes, torch::kFloat);
  const CountedMemory memory;
  const int64_t all_logits = sizes.rows * sizes.vocabulary * static_cast<int64_t>(sizeof(float));
  loss(of).backward();
  EXPECT_GT(memory.counts->largest, 0);
  EXPECT_LT(memory.counts->largest, all_logits / 4);
  expected_loss(of).backward();
  EXPECT_EQ(memory.counts->largest, all_logits);
}

}  // namespace
}  // namespace fsdp::test
