#pragma once
/// \file
/// The random state of a rank: that of each device's default generator, and of those that the user names.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/random_state.h"
#include "state/model_tensors.h"

namespace fsdp::state {

/// The name of a default generator's state, e.g. "cpu".
std::string name_of(const at::Device& device);
/// What a rank's state of this name is called among the tensors of a checkpoint, e.g. "random.3.cpu".
std::string name_of_random(int rank, const std::string& name);
/// Whether a tensor has such a name, of any rank.
bool is_random(const std::string& name);
/// The CPU, and the devices that compute with the tensors.
std::vector<at::Device> devices_of(const ModelTensors& tensors);
using runtime::random_state;
using runtime::set_random_state;

}  // namespace fsdp::state
