#pragma once
/// \file
/// The parameters that an optimizer step updates, and the locks that a step takes to write them.

#include <torch/optim/optimizer.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/registry.h"
#include "runtime/runs.h"

namespace fsdp::optim {

/// One parameter in an optimizer step.
struct Update {
  at::Tensor parameter;
  /// The parameter's memory on this rank: the rows of a sharded parameter, or all of an unsharded one.
  at::Tensor rows;
  /// Gradient with the layout of `rows`. Undefined if the operation only concerns the optimizer state.
  at::Tensor gradient;
  /// Index of the optimizer's parameter group, and index of the parameter in that group.
  size_t options = 0, index = 0;
  /// Number of the parameter in the optimizer, counted from 1 over all parameter groups. It is the same on every rank.
  int64_t parameter_number = 0;
  /// Index of the first element of `rows` in the whole parameter.
  int64_t first_element = 0;
  /// The parameter's group and slot; unset if it is not sharded.
  std::optional<runtime::Part> part;
  /// State tensors, all with the layout of `rows`.
  std::vector<at::Tensor> states;
  /// True if a state tensor did not exist before this step.
  bool is_new = false;
  runtime::KernelKey kernel_key{};
};
using Updates = std::vector<Update>;

/// Returns "parameter 'blocks.0.fc.weight'", or "parameter 3 of parameter group 0" if the parameter is not sharded.
std::string name_of(const Update& update);
/// Returns the prefix of an error message of `operation`.
std::string where(const Update& update, const std::string& operation);

/// Returns the parameters of an optimizer for which `is_wanted` is true, in rounds that a step updates one after the
/// other. `gradient` is not set. A parameter that the optimizer lists k times, such as a tied weight, is in the first k
/// rounds, because torch::optim steps it k times.
std::vector<Updates> rounds_of(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               const std::function<bool(const at::Tensor&)>& is_wanted);

/// Returns the groups of the parameters, each group once, in the order of their first parameters. This order is the
/// same on every rank.
std::vector<runtime::ParamGroup*> groups_of(const std::vector<Updates>& rounds);

/// Functions that take_step calls for the parameters that have a gradient.
struct StepActions {
  /// Throws UsageError for an invalid update. take_step calls it for all updates before it writes any parameter.
  std::function<void(const Update&)> check;
  /// Updates the rows and states of one round.
  std::function<void(Updates&)> update_round;
};

/// Evaluates `closure` if there is one, and then calls `update_round` for each round of parameters that have a
/// gradient. During these calls the thread holds the locks of `runtime::lock_ranks`, each group has been told that its
/// rows are written, and the library does not intercept operators. Returns the closure's loss. Throws UsageError,
/// before anything is written, if a forward scope or a backward of one of the groups is open.
at::Tensor take_step(const std::string& operation, const torch::optim::Optimizer::LossClosure& closure,
                     const std::vector<torch::optim::OptimizerParamGroup>& groups, const StepActions& actions);

}  // namespace fsdp::optim
