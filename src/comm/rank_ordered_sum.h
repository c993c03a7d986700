#pragma once
/// \file
/// The order in which contributions are added, which decides the bits of the result.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <span>

namespace fsdp {

/// output = ((c[0] + c[1]) + c[2]) + ...; or the maximum or minimum.
///
/// Uses the contributions as scratch memory, except c[own], which stays as it is; `output` may be c[own] itself.
inline void reduce_in_rank_order(const at::Tensor& output,
                                 std::span<const at::Tensor> contributions, int own, ReduceOp op) {
  const auto combine = [op](at::Tensor result, const at::Tensor& a, const at::Tensor& b) {
    if (op == ReduceOp::kSum) at::add_out(result, a, b);
    if (op == ReduceOp::kMax) at::maximum_out(result, a, b);
    if (op == ReduceOp::kMin) at::minimum_out(result, a, b);
  };
  at::Tensor total = contributions[0];
  const auto last = contributions.size() - 1;
  for (size_t i = 1; i <= last; ++i) {
    // The first contribution of another rank holds the total until the last step.
    const at::Tensor& scratch = own == 0 ? contributions[1] : contributions[0];
    const at::Tensor& result = i == last ? output : scratch;
    combine(result, total, contributions[i]);
    total = result;
  }
}

}  // namespace fsdp
