#pragma once
/// \file
/// What tests of activation_checkpoint without ranks compute again, and how they compare it with the plain call.

#include <fsdp/activation_checkpoint.h>
#include <fsdp/error.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/small_net.h"

namespace fsdp::test {

/// Of `net`'s parameters and of `x`.
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

/// Of the UsageError that it throws; empty: it throws none.
template <class Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace fsdp::test
