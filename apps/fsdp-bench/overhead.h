#pragma once
/// \file
/// `fsdp-bench overhead` measures the host's time that a group costs in a training step.

#include "arguments.h"

namespace bench {

/// Trains models of many tiny groups as one rank, in turns with the same models unsharded. Rank 0 prints the time of a
/// step for each group. Collective.
void run_overhead(const OverheadArguments& arguments);

}  // namespace bench
