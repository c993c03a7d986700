#pragma once
/// \file
/// Random states of a rank: of the default generator of each device, and of generators that the user names.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/random_state.h"
#include "state/model_tensors.h"

namespace fsdp::state {

/// Name of the state of a device's default generator, e.g. "cpu".
std::string name_of(const at::Device& device);
/// Name of a rank's random state among a checkpoint's tensors, e.g. "random.3.cpu".
std::string name_of_random(int rank, const std::string& name);
/// Whether the name is that of a random state of any rank.
bool is_random(const std::string& name);
/// The CPU, and the devices that compute with the tensors.
std::vector<at::Device> devices_of(const ModelTensors& tensors);
using runtime::random_state;
using runtime::set_random_state;

}  // namespace fsdp::state
