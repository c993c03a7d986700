#pragma once
/// \file
/// The model of `fsdp-bench step`, sharded or not, behind one interface.

#include <fsdp/group.h>

#include <functional>
#include <vector>

#include "arguments.h"

namespace bench {

struct Trainee {
  /// Token numbers to logits.
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::vector<at::Tensor> parameters;
  /// Of a model that is not sharded, whole parameters and gradients are measured at the tensors.
  std::function<fsdp::GroupStats()> stats;
};

/// The same initial values whatever the engine. Collective for engine "fsdp".
Trainee make_trainee(const StepArguments& arguments);

}  // namespace bench
