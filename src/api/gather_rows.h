#pragma once
/// \file
/// Whole tensors of what lies as rows do.

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace fsdp {

namespace runtime {
class ParamGroup;
}

/// Gathers tensors of the sizes of a slot's rows, such as its gradient, into a new one of the parameter's sizes and
/// strides. Collective over the ranks that have rows each. Throws UsageError for other sizes, and what Work::wait
/// throws.
at::Tensor gather_rows(runtime::ParamGroup& group, size_t slot, const at::Tensor& rows, const char* operation);

}  // namespace fsdp
