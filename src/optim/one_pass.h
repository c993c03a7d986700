#pragma once
/// \file
/// A rule on a run of memory of the CPU.

#include <fsdp/flat_optimizer.h>

#include "optim/flat_runs.h"
#include "optim/rules.h"

namespace fsdp::optim {

/// What a step does to every run alike.
struct StepOptions {
  /// Of the gradients.
  double factor = 1;
  StateOptions state;
};

/// Updates the run's rows and states in one pass over memory. What is not in the precision that is computed with is so
/// for a block at a time, which stays in the first cache. `step`: tells the random numbers of a step from those of
/// another.
void update_in_one_pass(const FlatRun& run, const Rule& rule, const StepOptions& options, int64_t step);

}  // namespace fsdp::optim
