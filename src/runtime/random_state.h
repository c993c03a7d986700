#pragma once
/// \file
/// The random state of a device's default generator.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <mutex>

namespace fsdp::runtime {

/// Returns the state as a tensor of bytes on the CPU.
inline at::Tensor random_state(const at::Device& device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

inline void set_random_state(const at::Device& device, const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace fsdp::runtime
