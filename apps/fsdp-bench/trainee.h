#pragma once
/// \file
/// The model of `fsdp-bench step` and its optimizer, with one interface for all engines.

#include <fsdp/group.h>
#include <fsdp/optim.h>

#include <functional>
#include <memory>
#include <optional>

#include "arguments.h"

namespace bench {

struct Trainee {
  /// Computes logits from token numbers; not used with a pipeline.
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// Has the settings of torch.optim.AdamW(lr=1e-3), as in the Python script.
  std::shared_ptr<fsdp::optim::AdamW> optimizer;
  /// Returns byte counts. For a model that is not sharded they are computed from the tensors.
  std::function<fsdp::GroupStats()> stats;
  /// Handle of the sharded model; not set if the model is not sharded.
  std::optional<fsdp::Group> group = std::nullopt;
  /// Runs forward and backward of a batch through the stages of a pipeline and returns the loss; empty if there is no
  /// pipeline.
  std::function<at::Tensor(const at::Tensor& inputs, const at::Tensor& targets)> run_stages = {};
  /// Called at the end of each backward.
  std::function<void()> after_backward = [] {};
};

/// Makes the model and its optimizer. The initial values are the same for all engines and devices. Collective for the
/// engine "fsdp".
Trainee make_trainee(const StepArguments& arguments, c10::Device device);

}  // namespace bench
