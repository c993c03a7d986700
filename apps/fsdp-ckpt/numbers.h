#pragma once
/// \file
/// Elements of files as numbers.

#include <cstddef>
#include <span>
#include <vector>

#include "state/format/dtype.h"

namespace ckpt {

using Bytes = std::span<const std::byte>;

/// Whether it is F64, F32, F16 or BF16: what `convert` takes and gives.
bool is_float(fsdp::state::Dtype dtype);
/// The same numbers in another dtype, rounded to nearest; from F64 to 16 bits by way of F32, as LibTorch does.
std::vector<std::byte> convert(Bytes bytes, fsdp::state::Dtype from, fsdp::state::Dtype to);
/// The largest difference of two numbers at one place; infinite where one of them alone is not a number, 0 only where
/// all numbers are equal. Complex numbers count as two. Both have equally many elements.
double largest_difference(Bytes a, fsdp::state::Dtype dtype_of_a, Bytes b, fsdp::state::Dtype dtype_of_b);

}  // namespace ckpt
