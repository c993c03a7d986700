#pragma once
/// \file
/// LibTorch's element types as files have them, and the bytes of tensors.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

#include "state/format/dtype.h"

namespace fsdp::state {

/// Throws UsageError for a type that files do not have; `name` is the tensor's.
Dtype dtype_of(at::ScalarType type, const std::string& name);
at::ScalarType scalar_type_of(Dtype dtype);

/// Of a contiguous tensor on the CPU.
inline std::span<const std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}
inline std::span<std::byte> mutable_bytes_in(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace fsdp::state
