// Compares attention over ranks with softmax(q k^T) v of the whole sequences, written out.

#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct AttentionCase {
  std::string name;
  int64_t queries = 24, keys = 24;
  bool is_causal = false;
  int64_t key_heads = 12;
  int64_t value_size = 4;
  std::optional<double> scale = {};
  at::Tensor mask = {};
  at::ScalarType dtype = at::kDouble;
  double tolerance = 1e-10;
};

// Some queries see no key. With up to 4 ranks, most queries see none of the keys of some rank.
at::Tensor boolean_mask() {
  auto mask = torch::ones({24, 24}, at::kBool).tril();
  mask.narrow(0, 5, 2).fill_(false);
  mask.narrow(0, 12, 12).narrow(1, 0, 9).fill_(false);
  return mask;
}
at::Tensor keys_mask() { return torch::arange(24).lt(torch::tensor({20, 3}).view({2, 1, 1, 1})); }
at::Tensor bias() {
  const auto places = torch::arange(24, at::kDouble);
  const auto distance = (places.view({24, 1}) - places).abs();
  return torch::where(distance > 15, kMinusInfinity, -distance * 0.1).expand({12, 24, 24}) * torch::ones({12, 1, 1});
}

const std::vector<AttentionCase>& attention_cases() {
  static const std::vector<AttentionCase> all{
      {.name = "plain"},
      {.name = "causal", .is_causal = true},
      {.name = "GQA", .is_causal = true, .key_heads = 12 / 1},
      {.name = "padded", .queries = 17, .keys = 17},
      {.name = "padded, causal", .queries = 13, .keys = 13, .is_causal = true},
      {.name = "fewer tokens than chunks", .queries = 5, .keys = 5, .is_causal = true},
      {.name = "cross", .queries = 24, .keys = 9},
      {.name = "scale", .is_causal = true, .scale = 0.3},
      {.name = "boolean mask", .mask = boolean_mask()},
      {.name = "mask of keys", .mask = keys_mask()},
      {.name = "additive mask", .mask = bias()},
      {.name = "values of another size", .is_causal = true, .value_size = 3},
      {.name = "values of another size, mask", .value_size = 5, .mask = boolean_mask()},
      {.name = "fp32", .is_causal = true, .dtype = at::kFloat, .tolerance = 5e-6},
      {.name = "bf16", .is_causal = true, .dtype = at::kBFloat16, .tolerance = 2e-2},
      {.name = "fp16", .mask = boolean_mask(), .dtype = at::kHalf, .tolerance = 2e-3},
  };
  return all;
}

struct Operands {
  at::Tensor query, key, value, weights;  // leaves of sizes [batch, tokens, heads, size]
};

// Returns keys and values that are views of a transposed tensor, as models have them.
Operands operands_of(const AttentionCase& one, int64_t heads) {
  torch::manual_seed(11);  // in the test's thread
  const auto random = [&](int64_t tokens, int64_t of_heads, int64_t size) {
    return torch::randn({2, tokens, of_heads, size}, at::kDouble).to(one.dtype);
  };
  return {random(one.queries, heads, 4), random(one.keys, one.key_heads, 4),
          random(one.keys, one.key_heads, one.value_size), random(one.queries, heads, one.value_size)};
}

at::Tensor by_heads(const at::Tensor& tensor) { return tensor.transpose(1, 2); }
at::Tensor weighted(const at::Tensor& output, const at::Tensor& weights) { return (output * weights).sum(); }

std::vector<at::Tensor> expected_of(const AttentionCase& one, const Operands& given) {
  std::vector<at::Tensor> leaves;
  for (const auto& leaf : {given.query, given.key, given.value})
    leaves.push_back(leaf.to(at::kDouble, false, true).requires_grad_());
  const auto repeat = [&](const at::Tensor& tensor) {
    return by_heads(tensor).repeat_interleave(given.query.size(2) / one.key_heads, 1);
  };
  auto scores = by_heads(leaves[0]).matmul(repeat(leaves[1]).transpose(2, 3)) * one.scale.value_or(0.5);
  const auto later = torch::ones({one.queries, one.keys}, at::kBool).triu(1);
  if (one.is_causal) scores = scores.masked_fill(later, kMinusInfinity);
  if (one.mask.defined())
    scores = one.mask.scalar_type() == at::kBool ? scores.masked_fill(one.mask.logical_not(), kMinusInfinity)
                                                 : scores + one.mask;
  const auto sums = scores.exp().sum(3, true);
  const auto output = (scores.exp() / sums.clamp_min(1e-300)).matmul(repeat(leaves[2]));
  weighted(output, by_heads(given.weights.to(at::kDouble))).backward();
  return {output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const double error = (found.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance * std::max(1.0, expected.abs().max().item<double>())) << what;
}

// The last two numbers are those of the ranks of a ring and of the ranks that exchange heads, if these form another
// axis.
using MethodAndRanks = std::tuple<SequenceMethod, std::string, int, int>;
class Attention : public testing::TestWithParam<MethodAndRanks> {};

std::unique_ptr<SequenceParallel> open_sequence(SequenceMethod method, int ring, int heads) {
  if (heads == 1) return std::make_unique<SequenceParallel>(nullptr, method);
  const auto mesh = init_device_mesh({ring, heads}, {"ring", "heads"});
  return std::make_unique<SequenceParallel>(mesh.process_group("ring"), mesh.process_group("heads"), method);
}

TEST_P(Attention, OutputsAndGradientsAreThoseOfTheWholeSequence) {
  const auto& [method, backend, ring, heads] = GetParam();
  constexpr int64_t kHeads = 24;
  std::vector<Operands> given;
  std::vector<std::vector<at::Tensor>> expected;
  auto all = attention_cases();
  for (auto& one : all) {
    if (one.name == "additive mask") one.mask = one.mask.repeat({2, 1, 1});
    one.queries = std::max<int64_t>(one.queries, ring * heads);
    if (one.is_causal) one.keys = one.queries;
    if (one.name != "GQA") one.key_heads = kHeads;
    given.push_back(operands_of(one, kHeads));
    expected.push_back(expected_of(one, given.back()));
  }
  run_thread_ranks_with(ring * heads, {.backend = backend}, [&, method = method, ring = ring, heads = heads](int rank) {
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& one = all[i];
      const auto opened = open_sequence(method, ring, heads);
      const auto& sequence = *opened;
      std::vector<at::Tensor> leaves, own;
      for (const auto& leaf : {given[i].query, given[i].key, given[i].value}) {
        leaves.push_back(leaf.clone().requires_grad_());
        own.push_back(by_heads(sequence.shard(leaves.back(), 1)));
      }
      const auto mask = one.mask.defined() && one.mask.is_floating_point() ? one.mask.to(one.dtype) : one.mask;
      const auto output = torch::scaled_dot_product_attention(
          own[0], own[1], own[2], mask.defined() ? std::optional(mask) : std::nullopt, 0.0, one.is_causal, one.scale,
          one.key_heads != kHeads);
      EXPECT_EQ(output.scalar_type(), one.dtype) << one.name;
      const auto what = str_cat(one.name, ", rank ", rank);
      expect_near(sequence.unshard(output.detach(), 2), expected[i][0], one.tolerance, what + ": output");
      weighted(output, by_heads(sequence.shard(given[i].weights, 1))).backward();
      for (size_t j = 0; j < 3; ++j)
        expect_near(functional::all_reduce(leaves[j].grad()), expected[i][j + 1], one.tolerance,
                    str_cat(what, ": gradient ", j));
    }
  });
}

std::string method_name(SequenceMethod method) {
  switch (method) {
    case SequenceMethod::kHeadTail:
      return "HeadTail";
    case SequenceMethod::kRing:
      return "Ring";
    case SequenceMethod::kGather:
      return "Gather";
    case SequenceMethod::kHeads:
      return "Heads";
    case SequenceMethod::kRingSelfAttention:
      return "RingSelfAttention";
  }
  return "";
}

std::string name_of(const testing::TestParamInfo<MethodAndRanks>& info) {
  const auto& [method, backend, ring, heads] = info.param;
  return str_cat(method_name(method), '_', backend, '_', ring, heads > 1 ? str_cat("_by_", heads, "_heads") : "");
}

INSTANTIATE_TEST_SUITE_P(Methods, Attention,
                         testing::Combine(testing::Values(SequenceMethod::kHeadTail, SequenceMethod::kRing,
                                                          SequenceMethod::kGather, SequenceMethod::kHeads,
                                                          SequenceMethod::kRingSelfAttention),
                                          testing::Values("shm", "gloo"), testing::Values(1, 2, 3, 4),
                                          testing::Values(1)),
                         name_of);

// Each instance has a host with several ranks.
INSTANTIATE_TEST_SUITE_P(BetweenHosts, Attention,
                         testing::Combine(testing::Values(SequenceMethod::kHeadTail, SequenceMethod::kRing,
                                                          SequenceMethod::kGather, SequenceMethod::kHeads,
                                                          SequenceMethod::kRingSelfAttention),
                                          testing::Values("hierarchical"), testing::Values(3), testing::Values(1)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(TwoAxes, Attention,
                         testing::Combine(testing::Values(SequenceMethod::kHeadTail, SequenceMethod::kRing,
                                                          SequenceMethod::kGather, SequenceMethod::kRingSelfAttention),
                                          testing::Values("shm"), testing::Values(2), testing::Values(2, 3)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoAxesOverGloo, Attention,
                         testing::Values(MethodAndRanks{SequenceMethod::kHeadTail, "gloo", 2, 2}), name_of);

}  // namespace
}  // namespace fsdp::test
