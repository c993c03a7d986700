#pragma once
/// \file
/// The parameters that a step updates, and the locking that writing them needs.

#include <torch/optim/optimizer.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/registry.h"
#include "runtime/runs.h"

namespace fsdp::optim {

/// One parameter in a step.
struct Update {
  at::Tensor parameter;
  /// Its memory on this rank: the rows of a sharded parameter, or all of a plain tensor.
  at::Tensor rows;
  /// Has the rows' layout; undefined if only state is concerned.
  at::Tensor gradient;
  /// Index of the optimizer's parameter group, and of the parameter in it.
  size_t options = 0, index = 0;
  /// The parameter's number in the optimizer, which is the same on every rank.
  int64_t parameter_number = 0;
  /// Index of the rows' first element in the whole parameter.
  int64_t first_element = 0;
  /// Set for a sharded parameter.
  std::optional<runtime::Part> part;
  /// State tensors, all with the rows' layout.
  std::vector<at::Tensor> states;
  /// Whether some of the state did not exist before this step.
  bool is_new = false;
  runtime::KernelKey kernel_key{};
};
using Updates = std::vector<Update>;

/// "parameter 'blocks.0.fc.weight'", or for a plain tensor "parameter 3 of parameter group 0".
std::string name_of(const Update& update);
/// The prefix of an error message of `operation`.
std::string where(const Update& update, const std::string& operation);

/// The parameters of an optimizer that satisfy `is_wanted`, without gradients. A parameter that is listed k times, such
/// as a tied weight, is in the first k rounds, because torch::optim steps it k times.
std::vector<Updates> rounds_of(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               const std::function<bool(const at::Tensor&)>& is_wanted);

/// The groups of the parameters, each once, in the order of the parameters, which is the same on every rank.
std::vector<runtime::ParamGroup*> groups_of(const std::vector<Updates>& rounds);

/// Callbacks for the parameters that have a gradient.
struct StepActions {
  /// Throws UsageError for an invalid update. It is called for all updates of a step before any is written.
  std::function<void(const Update&)> check;
  std::function<void(Updates&)> update_round;
};

/// Evaluates `closure`, and then calls `update_round` for each round of parameters that have a gradient. Meanwhile the
/// ranks are locked, each group knows of the write, and no operator is intercepted. Returns the closure's loss. Throws
/// UsageError, before anything is written, in a forward scope or backward of one of the groups.
at::Tensor take_step(const std::string& operation, const torch::optim::Optimizer::LossClosure& closure,
                     const std::vector<torch::optim::OptimizerParamGroup>& groups, const StepActions& actions);

}  // namespace fsdp::optim
