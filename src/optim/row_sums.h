#pragma once
/// \file
/// Sums over the rows of a tensor, each row's from the row alone.

#include <ATen/core/Tensor.h>

#include "optim/exact_sum.h"

namespace fsdp::optim {

// A row of `row_numel` elements, one after another in memory, is summed in fp64 in an order that depends on `row_numel`
// only, and the rows' sums are added exactly, so it does not matter which ranks have the other rows. Not so on other
// devices than the CPU: there the order within a row is LibTorch's. No copy of more than a few rows.

/// The sum of |v|^p.
ExactSum sum_of_powers(const at::Tensor& values, int64_t row_numel, double p);
SignedExactSum sum_of_elements(const at::Tensor& values, int64_t row_numel);
/// Of two tensors of one dtype that lie alike.
SignedExactSum sum_of_products(const at::Tensor& left, const at::Tensor& right, int64_t row_numel);

/// The largest |v|, NaN if one is NaN, 0 if there is none.
double max_magnitude(const at::Tensor& values);

}  // namespace fsdp::optim
