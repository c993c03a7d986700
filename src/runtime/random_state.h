#pragma once
/// \file
/// The random state of a device's default generator.

#include <ATen/core/Tensor.h>

namespace fsdp::runtime {

/// Bytes, on the CPU.
at::Tensor random_state(const at::Device& device);
void set_random_state(const at::Device& device, const at::Tensor& state);

}  // namespace fsdp::runtime
