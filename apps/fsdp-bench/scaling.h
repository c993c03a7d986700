#pragma once
/// \file
/// `fsdp-bench scaling`: whether costs grow with the number of groups and parameters, and no faster.

#include "arguments.h"

namespace bench {

/// Takes models of 10, 100, 1000 ... units as one rank; rank 0 prints what a unit costs, sharded and unsharded, and how
/// often the least that it cost in a smaller model. Collective.
void run_scaling(const ScalingArguments& arguments);

}  // namespace bench
