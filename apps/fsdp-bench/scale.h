#pragma once
/// \file
/// The command `fsdp-bench scale`.

#include "arguments.h"

namespace bench {

/// Simulates ranks of large jobs and prints what a step costs each beside its data; or, with `real`, starts ranks and
/// compares what they count with the simulation. Throws fsdp::Error where it differs.
void run_scale(const ScaleArguments& arguments);

}  // namespace bench
