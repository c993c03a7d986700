#pragma once
/// \file
/// The state of optimizers as checkpoints store it: tensors of the same sizes as the parameters' rows, and numbers in
/// JSON. The types of optimizers are known only to optimizer_state.cpp and serialize_optimizer.cpp.

#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "state/model_tensors.h"

namespace fsdp::state {

/// A tensor of a parameter's optimizer state, e.g. "exp_avg".
struct StateTensor {
  size_t parameter = 0;  // index in ModelTensors::all
  std::string field;
  at::Tensor values;
};

/// Returns the name of a state tensor in checkpoints, e.g. "optim.state.blocks.0.weight.exp_avg".
std::string name_of_state(const std::string& parameter, const std::string& field);

/// Throws UsageError if the optimizer's type is not supported, or if it has parameters that the model does not have.
void require_known(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors, const std::string& where);
/// Returns JSON with the numbers in the state of each parameter whose first row this rank writes. On rank 0 the JSON
/// also contains the optimizer's type, and the options and parameter names of each parameter group. joined_objects
/// merges the texts of all ranks.
std::string numbers_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors);
/// Returns the dtype of the optimizer's state tensors for a floating-point parameter.
at::ScalarType dtype_of_state(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
/// Returns the names of the state tensors that the optimizer's type has for each parameter.
std::vector<std::string> state_fields(const torch::optim::Optimizer& optimizer);
/// Returns the state tensors that this rank has.
std::vector<StateTensor> tensors_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors);

/// Describes the difference between the optimizer and the saved one (a different type or different parameter groups).
/// Returns "" if they match.
std::string misfit_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors,
                      const std::string& numbers);
/// Restores the options and the state. `numbers` is the merged text of numbers_of. `read(place, field)` returns a state
/// tensor of the parameter ModelTensors::all[place], or an undefined tensor if none was saved. Parameters without saved
/// state get none; see add_missing_state.
void restore(torch::optim::Optimizer& optimizer, const ModelTensors& tensors, const std::string& numbers,
             const std::function<at::Tensor(size_t place, const std::string& field)>& read);
/// Adds the initial state for the parameters of a torch::optim::Adagrad that have none, because its `step` needs state
/// for every parameter. Checkpoints of fsdp::optim::Adagrad have state only for parameters that had a gradient. Does
/// nothing for other optimizers.
void add_missing_state(torch::optim::Optimizer& optimizer);

}  // namespace fsdp::state
