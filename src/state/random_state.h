#pragma once
/// \file
/// The random states of a rank: those of each device's default generator, and those of generators that the user saves
/// (SaveOptions::random_states).

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/random_state.h"
#include "state/model_tensors.h"

namespace fsdp::state {

/// Returns the name of the state of a device's default generator, e.g. "cpu".
std::string name_of(const at::Device& device);
/// Returns the name of a rank's random state among a checkpoint's tensors, e.g. "random.3.cpu" on rank 3.
std::string name_of_random(int rank, const std::string& name);
/// Returns true if the name is that of a random state of any rank.
bool is_random(const std::string& name);
/// Returns the CPU and one device of each other type that computes with the tensors.
std::vector<at::Device> devices_of(const ModelTensors& tensors);
using runtime::random_state;
using runtime::set_random_state;

}  // namespace fsdp::state
