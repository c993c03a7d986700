#pragma once
/// \file
/// Optimizer rules on CPU memory, in one pass.

#include <fsdp/flat_optimizer.h>

#include "optim/flat_runs.h"
#include "optim/rules.h"

namespace fsdp::optim {

/// Options of a step that are the same for every run.
struct StepOptions {
  /// Factor of the gradients.
  double factor = 1;
  StateOptions state;
};

/// Updates the run's rows and states in one pass over memory. Numbers of other dtypes than that of the computation are
/// converted in blocks that fit into the first-level cache. `step` selects the random numbers of stochastic rounding.
void update_in_one_pass(const FlatRun& run, const Rule& rule, const StepOptions& options, int64_t step);

}  // namespace fsdp::optim
