#pragma once
/// \file
/// Gradients that kernels can walk through beside the rows.

#include <ATen/core/Tensor.h>

namespace fsdp::optim {

/// The gradient with the rows' dtype and device and its elements in memory in the rows' order: itself, as it nearly
/// always is, otherwise (a sparse one, or one that somebody assigned) a copy. Both have the same sizes, and the rows
/// are dense.
at::Tensor laid_out_as(const at::Tensor& rows, const at::Tensor& gradient);

}  // namespace fsdp::optim
