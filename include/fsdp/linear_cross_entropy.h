#pragma once
/// \file
/// The cross entropy of a large vocabulary, without storing all logits.

#include <ATen/core/Tensor.h>

#include <cstdint>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// The mean cross entropy between the logits, `x` times the transposed `weight`, and `targets`; it fuses torch's
/// `linear` and `cross_entropy`. `x`: [rows, features]; `weight`: [classes, features] of the same floating-point dtype;
/// `targets`: [rows] in int64, from 0 to classes - 1, or `ignore_index` for rows to ignore. The loss has dtype fp32, or
/// fp64 for fp64 inputs, and is 0 if all rows are ignored.
///
/// Logits are computed for some rows at a time, and forward computes the gradients at once; backward only scales them,
/// so second derivatives are refused (P. Hsu et al., Liger Kernel, 2025, section 3.2). From forward to backward the
/// gradients of `x` and `weight` are kept. `weight` may be a sharded parameter: forward gathers it, backward does not.
/// Otherwise not collective. Any thread. Throws UsageError for other sizes or dtypes.
///
///     auto loss = fsdp::linear_cross_entropy(x.flatten(0, 1), head->weight, targets.flatten());
[[nodiscard]] at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                              int64_t ignore_index = -100);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
