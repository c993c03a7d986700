#pragma once
/// \file
/// What a step updates, and the permission to write it.

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
  /// Its memory on this rank: the rows of a sharded parameter, all of a plain one.
  at::Tensor rows;
  /// Laid out as the rows are; undefined where only state matters.
  at::Tensor gradient;
  /// The optimizer's group of options, and the parameter's place in it.
  size_t options = 0, index = 0;
  /// Its place among all parameters of the optimizer, which is the same on every rank.
  int64_t parameter_number = 0;
  /// The place of the rows' first element in the whole parameter.
  int64_t first_element = 0;
  /// Of a sharded parameter.
  std::optional<runtime::Part> part;
  /// What is kept between steps; all of them have the rows' layout.
  std::vector<at::Tensor> states;
  /// Some of it was not there before this step.
  bool is_new = false;
  runtime::KernelKey kernel_key{};
};
using Updates = std::vector<Update>;

/// "parameter 'blocks.0.fc.weight'", of a plain tensor "parameter 3 of parameter group 0".
std::string name_of(const Update& update);
/// How an error of `operation` begins.
std::string where(const Update& update, const std::string& operation);

/// The parameters of an optimizer that `is_wanted`, with no gradient yet. One that is listed k times, as a tied weight
/// in `model->parameters()`, is in the first k rounds, because torch::optim steps it k times.
std::vector<Updates> rounds_of(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               const std::function<bool(const at::Tensor&)>& is_wanted);

/// Each once, in the order of the parameters, which is the same on every rank.
std::vector<runtime::ParamGroup*> groups_of(const std::vector<Updates>& rounds);

/// What a step does with the parameters that have a gradient.
struct StepActions {
  /// Throws UsageError for an update that cannot be; every one of a step is asked before any is written.
  std::function<void(const Update&)> check;
  std::function<void(Updates&)> update_round;
};

/// Evaluates `closure`, then gives every parameter that has a gradient to `update_round`, round by round, with the
/// ranks locked, the right to write announced to each group, and no operator intercepted. Returns the closure's loss.
/// Throws UsageError, before anything is written, in a forward scope or backward of one of the groups.
at::Tensor take_step(const std::string& operation, const torch::optim::Optimizer::LossClosure& closure,
                     const std::vector<torch::optim::OptimizerParamGroup>& groups, const StepActions& actions);

}  // namespace fsdp::optim
