#pragma once
/// \file
/// `fsdp-bench step` measures the time and memory of a training step.

#include "arguments.h"

namespace bench {

/// Trains as one rank. Rank 0 prints the result as one line of JSON. Collective.
///
/// Model, seeds, data, optimizer and the parts of a step's time are the same as in the Python script that
/// `bench/compare` runs for comparison, so the losses are the same, too.
void run_step(const StepArguments& arguments);

}  // namespace bench
