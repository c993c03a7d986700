#pragma once
/// \file
/// The model of `fsdp-bench step` and its optimizer, sharded or not, behind one interface.

#include <fsdp/group.h>
#include <fsdp/optim.h>

#include <functional>
#include <memory>
#include <optional>

#include "arguments.h"

namespace bench {

struct Trainee {
  /// Token numbers to logits; without a pipeline.
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// With the settings of torch.optim.AdamW(lr=1e-3), as the peer's.
  std::shared_ptr<fsdp::optim::AdamW> optimizer;
  /// Of a model that is not sharded, bytes are measured at the tensors.
  std::function<fsdp::GroupStats()> stats;
  /// None of a model that is not sharded.
  std::optional<fsdp::Group> group = std::nullopt;
  /// Forward and backward of a batch through the stages of a pipeline, and its loss; empty: there is none.
  std::function<at::Tensor(const at::Tensor& inputs, const at::Tensor& targets)> run_stages = {};
  /// What a backward ends with.
  std::function<void()> after_backward = [] {};
};

/// The same initial values whatever the engine and the device. Collective for the engine "fsdp".
Trainee make_trainee(const StepArguments& arguments, c10::Device device);

}  // namespace bench
