#pragma once
/// \file
/// `fsdp-bench step --versus ENGINE` compares two engines whose steps alternate in the same processes.

#include "arguments.h"

namespace bench {

/// Trains `arguments.pairs` pairs of steps after the warm-up. Each pair has one step of engine `arguments.engine` and
/// one of `arguments.versus`, with the same batch; the engines take turns going first. All ranks meet in a barrier
/// before each step, and the time of a step is that of the slowest rank. Rank 0 prints one line of JSON with the median
/// of the pairs' ratios and its bootstrap interval. If the other engine is "none", the ratio is to the bound of a step,
/// otherwise to the other engine's step. Both models are in memory at once, so the output has no memory. Collective.
void run_versus(const StepArguments& arguments);

}  // namespace bench
