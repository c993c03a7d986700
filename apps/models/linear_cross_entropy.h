#pragma once
/// \file
/// The loss of a large vocabulary without all of its logits.

#include <ATen/core/Tensor.h>

namespace models {

/// Mean cross entropy of the logits `x` times `weight` transposed against `targets`. `x`: [rows, dim]; `weight`:
/// [vocab, dim]; `targets`: [rows], int64, each below vocab. Logits exist for some rows at a time, and forward takes
/// the gradients from them while they are there; backward only scales these, so there are no second derivatives. The
/// way of Hsu et al. 2025 (Liger Kernel, section 3.2).
///
///     auto loss = models::linear_cross_entropy(x.flatten(0, 1), head->weight, targets.flatten());
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace models
