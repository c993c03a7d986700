#pragma once
/// \file
/// A rule on a run of memory of a device.

#include "optim/flat_runs.h"
#include "optim/rules.h"

namespace fsdp::optim {

/// Updates the run's rows and states by LibTorch's operators, its fused ones where it has them. `factor`: of the
/// gradients.
void update_by_operators(const FlatRun& run, const Rule& rule, double factor);

}  // namespace fsdp::optim
