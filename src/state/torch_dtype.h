#pragma once
/// \file
/// Conversion between LibTorch's dtypes and those of files, and tensors as bytes.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

#include "state/format/dtype.h"

namespace fsdp::state {

/// Throws UsageError for a dtype that files do not support; `name` is the tensor's name.
Dtype dtype_of(at::ScalarType type, const std::string& name);
at::ScalarType scalar_type_of(Dtype dtype);

/// The bytes of a contiguous CPU tensor.
inline std::span<const std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}
inline std::span<std::byte> mutable_bytes_in(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace fsdp::state
