#pragma once
/// \file
/// The state of optimizers as checkpoints store it: tensors with the layout of rows, and numbers in JSON. Among the
/// files of checkpoints, only this one depends on the types of optimizers.

#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "state/model_tensors.h"

namespace fsdp::state {

/// A tensor of a parameter's optimizer state, e.g. "exp_avg".
struct StateTensor {
  size_t parameter = 0;  // index among the model's tensors
  std::string field;
  at::Tensor values;
};

/// A name such as "optim.state.blocks.0.weight.exp_avg".
std::string name_of_state(const std::string& parameter, const std::string& field);

/// Throws UsageError if the optimizer's type is not supported, or if it has parameters that the model does not have.
void require_known(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors, const std::string& where);
/// JSON with the numbers of each parameter whose first row this rank writes; on rank 0 also the optimizer's kind and
/// the options and parameters of each group. joined_objects merges the texts of all ranks.
std::string numbers_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors);
/// Dtype of the optimizer's state tensors for a floating-point parameter.
at::ScalarType dtype_of_state(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
/// Names of the state tensors that the optimizer's type has for each parameter.
std::vector<std::string> state_fields(const torch::optim::Optimizer& optimizer);
std::vector<StateTensor> tensors_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors);

/// The difference between the optimizer and a saved one (another type, other parameter groups); empty if they match.
std::string misfit_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors,
                      const std::string& numbers);
/// Restores options and state that `numbers_of` saved. `read(place, field)` returns a state tensor, or an undefined
/// one. Parameters without saved state start anew; see `add_missing_state`.
void restore(torch::optim::Optimizer& optimizer, const ModelTensors& tensors, const std::string& numbers,
             const std::function<at::Tensor(size_t place, const std::string& field)>& read);
/// Gives parameters of a torch::optim::Adagrad that have no state the state of its constructor, which its `step`
/// requires. Checkpoints of fsdp::optim::Adagrad have state only for parameters that had a gradient.
void add_missing_state(torch::optim::Optimizer& optimizer);

}  // namespace fsdp::state
