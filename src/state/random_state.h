#pragma once
/// \file
/// The random state of a rank: that of each device's default generator.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "state/model_tensors.h"

namespace fsdp::state {

/// "random.3.cpu"
std::string name_of_random(int rank, const at::Device& device);
/// The CPU, and the devices that the tensors are on.
std::vector<at::Device> devices_of(const ModelTensors& tensors);
/// Bytes, on the CPU.
at::Tensor random_state(const at::Device& device);
void set_random_state(const at::Device& device, const at::Tensor& state);

}  // namespace fsdp::state
