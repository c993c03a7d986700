#pragma once
/// \file
/// Sums over the rows of a tensor, in which each row's sum depends on that row only.

#include <ATen/core/Tensor.h>

#include "optim/exact_sum.h"

namespace fsdp::optim {

// On the CPU a row of `row_numel` contiguous elements is summed in fp64 in an order that depends only on `row_numel`,
// and the sums of rows are added exactly, so the distribution of rows over ranks does not matter. On other devices
// LibTorch chooses the order within a row. Only a few rows at a time are copied.

/// The sum of |v|^p.
ExactSum sum_of_powers(const at::Tensor& values, int64_t row_numel, double p);
SignedExactSum sum_of_elements(const at::Tensor& values, int64_t row_numel);
/// The sum of the products of two tensors with equal dtype and layout.
SignedExactSum sum_of_products(const at::Tensor& left, const at::Tensor& right, int64_t row_numel);

/// The largest |v|; NaN if there is a NaN, 0 for an empty tensor.
double max_magnitude(const at::Tensor& values);

}  // namespace fsdp::optim
