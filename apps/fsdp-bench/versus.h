#pragma once
/// \file
/// `fsdp-bench step --versus ENGINE`: two engines measured in the same processes, step by step in turns.

#include "arguments.h"

namespace bench {

/// Trains `arguments.pairs` pairs of steps, one of engine `arguments.engine` and one of `arguments.versus`, after both
/// are warm. Within a pair both take the same batch, and they go first by turns. All ranks meet in a barrier before
/// each step; a step takes as long as on its slowest rank. Rank 0 prints one line of JSON: the median of the ratios
/// within a pair, with its bootstrap interval. Versus "none" the ratio is to the bound of a step, otherwise to the
/// other's step. Both models are in memory at once, so nothing is said of memory. Collective.
void run_versus(const StepArguments& arguments);

}  // namespace bench
