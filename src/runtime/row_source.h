#pragma once
/// \file
/// Where rows have their values from.

#include <ATen/core/Tensor.h>

#include <functional>

#include "runtime/param_rows.h"

namespace fsdp::runtime {

/// Fills `wanted.values`: from a tensor, a file's range, or by computing them from the name and the rows' numbers.
/// Asked once for each parameter, on the ranks that have rows of it, which need not take part in the same order.
using RowSource = std::function<void(const ParamRows& wanted)>;

/// Copies them out of a tensor of the parameter's sizes, on any device. A value that was put off is computed, and gone
/// when the rows are copied.
RowSource rows_of_tensor(at::Tensor whole);

}  // namespace fsdp::runtime
