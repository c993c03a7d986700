#pragma once
/// \file
/// What elements are, and where they are kept.

#include <ATen/core/Tensor.h>

namespace fsdp::memory {

struct Form {
  c10::ScalarType dtype;
  c10::Device device;

  size_t bytes(int64_t numel) const { return static_cast<size_t>(numel) * c10::elementSize(dtype); }
  bool operator==(const Form&) const = default;
};

inline Form form_of(const at::Tensor& tensor) { return {tensor.scalar_type(), tensor.device()}; }

}  // namespace fsdp::memory
