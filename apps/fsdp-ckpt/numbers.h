#pragma once
/// \file
/// Reads elements of files as numbers.

#include <cstddef>
#include <span>
#include <vector>

#include "state/format/dtype.h"

namespace ckpt {

using Bytes = std::span<const std::byte>;

/// True for F64, F32, F16 and BF16, which are the dtypes that `convert` supports.
bool is_float(fsdp::state::Dtype dtype);
/// Converts numbers to another dtype and rounds them to nearest. Like LibTorch, it converts F64 to 16 bits by way of
/// F32.
std::vector<std::byte> convert(Bytes bytes, fsdp::state::Dtype from, fsdp::state::Dtype to);
/// Returns the largest difference of two numbers at the same index. It is infinite if exactly one of two numbers is
/// NaN, and 0 only if all numbers are equal. A complex number counts as two numbers. `a` and `b` must have equally many
/// elements.
double largest_difference(Bytes a, fsdp::state::Dtype dtype_of_a, Bytes b, fsdp::state::Dtype dtype_of_b);

}  // namespace ckpt
