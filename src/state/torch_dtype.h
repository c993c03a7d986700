#pragma once
/// \file
/// Converts between LibTorch's dtypes and those of files, and gives access to the bytes of tensors.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

#include "state/format/dtype.h"

namespace fsdp::state {

/// Returns the dtype in files. Throws UsageError for a dtype that files do not support. `name` is the tensor's name for
/// the error message.
Dtype dtype_of(at::ScalarType type, const std::string& name);
at::ScalarType scalar_type_of(Dtype dtype);

/// Returns the bytes of a contiguous CPU tensor.
inline std::span<const std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}
inline std::span<std::byte> mutable_bytes_in(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace fsdp::state
