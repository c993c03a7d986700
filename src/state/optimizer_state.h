#pragma once
/// \file
/// What optimizers keep, as files have it: tensors that lie as rows do, and numbers in JSON. The only place that knows
/// the kinds of optimizers.

#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "state/model_tensors.h"

namespace fsdp::state {

/// A tensor of a parameter's state, e.g. "exp_avg".
struct StateTensor {
  size_t parameter = 0;  // its place among the model's tensors
  std::string field;
  at::Tensor values;
};

/// "optim.state.blocks.0.weight.exp_avg"
std::string name_of_state(const std::string& parameter, const std::string& field);

/// Throws UsageError if the optimizer is of a kind that keeps other things, or of parameters that the model does not
/// have.
void require_known(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors, const std::string& where);
/// The numbers of each parameter of which this rank has row 0; on rank 0 also the optimizer's kind, and the options and
/// parameters of each group. joined_objects puts together what the ranks have.
std::string numbers_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors);
/// Of the tensors that the optimizer keeps of a floating parameter.
at::ScalarType dtype_of_state(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
/// Names of the tensors that the optimizer's kind keeps of a parameter.
std::vector<std::string> state_fields(const torch::optim::Optimizer& optimizer);
std::vector<StateTensor> tensors_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors);

/// What does not fit: another kind of optimizer, other groups of parameters. Empty if all of it does.
std::string misfit_of(const torch::optim::Optimizer& optimizer, const ModelTensors& tensors,
                      const std::string& numbers);
/// Gives it the options and state that `numbers_of` saved. `read(place, field)` gives the tensor of a state, undefined
/// if there is none. A parameter of which nothing was saved begins anew; see `add_missing_state`.
void restore(torch::optim::Optimizer& optimizer, const ModelTensors& tensors, const std::string& numbers,
             const std::function<at::Tensor(size_t place, const std::string& field)>& read);
/// Gives parameters without state what the optimizer's constructor gave them. torch::optim::Adagrad has state of every
/// parameter from then on and takes it for granted; files of fsdp::optim::Adagrad have it of those that had a gradient.
void add_missing_state(torch::optim::Optimizer& optimizer);

}  // namespace fsdp::state
