#pragma once
/// \file
/// Norms of a gradient's rows, each from the row alone.

#include <ATen/core/Tensor.h>

#include "optim/exact_sum.h"

namespace fsdp::optim {

/// The exact sum over the rows of the sum of |g|^p over a row. A row of `row_numel` elements, one after another in
/// memory, is summed in fp64 in an order that depends on `row_numel` only, so it does not matter which ranks have the
/// other rows. Not so on other devices than the CPU: there the order within a row is LibTorch's. No copy of more than a
/// few rows.
ExactSum sum_of_powers(const at::Tensor& gradient, int64_t row_numel, double p);

/// The largest |g|, NaN if one is NaN, 0 if there is none.
double max_magnitude(const at::Tensor& gradient);

}  // namespace fsdp::optim
