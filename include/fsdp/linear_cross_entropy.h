#pragma once
/// \file
/// Cross entropy of a large vocabulary that does not store all logits.

#include <ATen/core/Tensor.h>

#include <cstdint>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// Returns the mean cross entropy between logits and `targets`, where the logits are `x` times the transposed `weight`;
/// the function fuses torch's `linear` and `cross_entropy`. `x` has sizes [rows, features]. `weight` has sizes
/// [classes, features] and the same floating-point dtype. `targets` has sizes [rows] and int64 elements from 0 to
/// classes - 1, or `ignore_index` for rows to ignore. The loss has dtype fp32, or fp64 for fp64 inputs, and is 0 if all
/// rows are ignored.
///
/// Forward computes the logits of a few rows at a time, and immediately the gradients of these logits (P. Hsu et al.,
/// Liger Kernel, 2025, section 3.2). The gradients of `x` and `weight` are kept until backward, which only scales them,
/// so second derivatives throw an error. `weight` may be a sharded parameter: forward gathers it, and backward does
/// not. Only then is the function collective. Any thread may call it. Throws UsageError for other sizes or dtypes.
///
///     auto loss = fsdp::linear_cross_entropy(x.flatten(0, 1), head->weight, targets.flatten());
[[nodiscard]] at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                              int64_t ignore_index = -100);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
