#pragma once
/// \file
/// `fsdp-bench overhead` measures the time of the host that a group adds to a training step.

#include "arguments.h"

namespace bench {

/// Trains models of many tiny groups, sharded and unsharded. Rank 0 prints the time of a step per group. Collective.
void run_overhead(const OverheadArguments& arguments);

}  // namespace bench
