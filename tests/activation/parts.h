#pragma once
/// \file
/// Parts that tests without ranks recompute with activation_checkpoint, and functions that compare them with plain
/// calls.

#include <fsdp/activation_checkpoint.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "support/small_net.h"

namespace fsdp::test {

/// Takes the gradients of the parameters of `net` and of `x` out of them, and returns them.
inline std::vector<torch::Tensor> take_gradients(torch::nn::Module& net, const torch::Tensor& x) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net.parameters()) gradients.push_back(parameter.grad());
  gradients.push_back(x.grad());
  net.zero_grad();
  x.mutable_grad() = torch::Tensor();
  return gradients;
}

inline void expect_equal_bits(const std::vector<torch::Tensor>& expected, const std::vector<torch::Tensor>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].defined(), found[i].defined()) << i;
    if (expected[i].defined()) {
      EXPECT_TRUE(torch::equal(expected[i], found[i])) << i;
    }
  }
}

inline SmallBlock block_of(int64_t dim = 6) {
  torch::manual_seed(3);
  return SmallBlock(dim);
}

inline torch::Tensor input(int64_t dim = 6) {
  torch::manual_seed(5);
  return torch::randn({4, dim}).requires_grad_();
}

/// Expects that `run(checkpoints)` returns the same tensors with recomputed parts as with plain calls.
template <class Run>
void expect_same_either_way(const Run& run) {
  const std::vector<torch::Tensor> expected = run(false);
  expect_equal_bits(expected, run(true));
}

/// Calls `part`. If `checkpoints` is set, backward recomputes it.
template <class Part, class... Inputs>
auto call(bool checkpoints, const CheckpointOptions& options, Part part, const Inputs&... inputs) {
  return checkpoints ? activation_checkpoint(options, part, inputs...) : part(inputs...);
}

inline const CheckpointOptions kKeepsAll{.keeps_results = [](std::string_view) { return true; }};

/// Expects that `fn` throws a UsageError that contains `words`.
template <class Fn>
void expect_refused(const Fn& fn, const std::string& words) {
  EXPECT_THAT(fn, testing::ThrowsMessage<UsageError>(testing::HasSubstr(words)));
}

}  // namespace fsdp::test
