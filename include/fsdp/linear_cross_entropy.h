#pragma once
/// \file
/// The loss of a large vocabulary without all of its logits.

#include <ATen/core/Tensor.h>

#include <cstdint>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// The mean cross entropy of the logits `x` times `weight` transposed against `targets`: torch's `linear` and
/// `cross_entropy` in one. `x`: [rows, features]; `weight`: [classes, features], of the same floating point dtype;
/// `targets`: [rows] of int64, each from 0 to classes - 1, or `ignore_index` for a row that does not count. The loss is
/// fp32, or fp64 for fp64, and 0 where no row counts.
///
/// Logits exist for some rows at a time, and forward takes the gradients from them while they are there; backward only
/// scales these, so there are no second derivatives (P. Hsu et al., Liger Kernel, 2025, section 3.2). It keeps the
/// gradients of `x` and `weight` until then. `weight` may be a sharded parameter, which forward gathers and backward
/// does not. Not collective beyond that. Any thread. Throws UsageError for other sizes or dtypes.
///
///     auto loss = fsdp::linear_cross_entropy(x.flatten(0, 1), head->weight, targets.flatten());
[[nodiscard]] at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                              int64_t ignore_index = -100);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
