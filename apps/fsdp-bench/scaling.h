#pragma once
/// \file
/// `fsdp-bench scaling` measures whether costs grow faster than the number of groups and parameters.

#include "arguments.h"

namespace bench {

/// Trains models of 10, 100, 1000 ... units as one rank. Rank 0 prints the cost of a unit, sharded and unsharded, and
/// its ratio to the least cost of a unit in smaller models. Collective.
void run_scaling(const ScalingArguments& arguments);

}  // namespace bench
