#pragma once
/// \file
/// `fsdp-bench step`: time and memory of a training step.

#include "arguments.h"

namespace bench {

/// Trains as one rank; rank 0 prints the result as one line of JSON. Collective.
///
/// Model, seeds, data, optimizer and what a step's time is made of are those of the peer's script that `bench/compare`
/// takes, so the losses are, too.
void run_step(const StepArguments& arguments);

}  // namespace bench
