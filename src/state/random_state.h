#pragma once
/// \file
/// The random state of a rank: that of each device's default generator.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/random_state.h"
#include "state/model_tensors.h"

namespace fsdp::state {

/// "random.3.cpu"
std::string name_of_random(int rank, const at::Device& device);
/// The CPU, and the devices that compute with the tensors.
std::vector<at::Device> devices_of(const ModelTensors& tensors);
using runtime::random_state;
using runtime::set_random_state;

}  // namespace fsdp::state
