#pragma once
/// \file
/// `fsdp-bench overhead`: what a group costs the host in a training step.

#include "arguments.h"

namespace bench {

/// Trains models of many tiny groups as one rank, in turns with the same models unsharded; rank 0 prints what a step
/// takes for each group. Collective.
void run_overhead(const OverheadArguments& arguments);

}  // namespace bench
