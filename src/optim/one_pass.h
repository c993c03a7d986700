#pragma once
/// \file
/// Optimizer steps on the CPU, in one pass over memory.

#include <fsdp/flat_optimizer.h>

#include "optim/flat_runs.h"
#include "optim/rules.h"

namespace fsdp::optim {

/// Options of a step that are the same for every run.
struct StepOptions {
  /// Factor by which the gradients are multiplied.
  double factor = 1;
  StateOptions state;
};

/// Updates the run's rows and states in one pass over memory, in fp64 if the rows are fp64 and in fp32 otherwise.
/// Numbers of other dtypes are converted in blocks that fit into the first-level cache. `step`, together with the seed
/// in `options`, selects the random numbers of stochastic rounding.
void update_in_one_pass(const FlatRun& run, const Rule& rule, const StepOptions& options, int64_t step);

}  // namespace fsdp::optim
