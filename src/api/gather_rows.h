#pragma once
/// \file
/// Whole tensors of what lies as rows do.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

namespace fsdp {

namespace runtime {
class ParamGroup;
}

/// Gathers tensors of the sizes of a slot's rows, such as its gradient, into a new one of the parameter's sizes and
/// strides. `call` of the user's that needs it, and the file that it is about, if it is about one, are for messages.
/// Collective over the ranks that have rows each. Throws UsageError for other sizes, and what Work::wait throws.
at::Tensor gather_rows(runtime::ParamGroup& group, size_t slot, const at::Tensor& rows, const std::string& call,
                       const std::string& path = {});
/// full_tensor for such a call.
at::Tensor gather_whole(const at::Tensor& parameter, const std::string& call, const std::string& path = {});

}  // namespace fsdp
