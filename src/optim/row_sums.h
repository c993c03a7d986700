#pragma once
/// \file
/// Sums over the rows of a tensor, in which each row's sum depends on that row only.

#include <ATen/core/Tensor.h>

#include "optim/exact_sum.h"

namespace fsdp::optim {

// On the CPU, a row of `row_numel` contiguous elements is summed in fp64 in an order that depends only on `row_numel`,
// and the sums of the rows are added exactly, so the result does not depend on which rank has which rows. On other
// devices LibTorch chooses the order within a row, and only a few rows at a time are copied to fp64. Integer tensors
// are copied to fp64 as a whole.

/// Returns the sum of |v|^p over all elements v.
ExactSum sum_of_powers(const at::Tensor& values, int64_t row_numel, double p);
/// Returns the sum of all elements.
SignedExactSum sum_of_elements(const at::Tensor& values, int64_t row_numel);
/// Returns the sum of the element-wise products of two floating-point tensors with equal dtype and layout.
SignedExactSum sum_of_products(const at::Tensor& left, const at::Tensor& right, int64_t row_numel);

/// Returns the largest |v| of all elements v. The result is NaN if an element is NaN, and 0 for an empty tensor.
double max_magnitude(const at::Tensor& values);

}  // namespace fsdp::optim
