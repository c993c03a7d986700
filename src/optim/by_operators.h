#pragma once
/// \file
/// Optimizer rules on a device, by LibTorch's operators.

#include "optim/flat_runs.h"
#include "optim/rules.h"

namespace fsdp::optim {

/// Updates the run's rows and states by LibTorch's operators, fused ones if available. `factor` scales the gradients.
void update_by_operators(const FlatRun& run, const Rule& rule, double factor);

}  // namespace fsdp::optim
