#pragma once
/// \file
/// The command `fsdp-bench scale`.

#include "arguments.h"

namespace bench {

/// Simulates ranks of large jobs, and prints what a step costs a rank besides its data. With `real` it starts ranks
/// instead and compares their counts with the simulation. Throws fsdp::Error if they differ.
void run_scale(const ScaleArguments& arguments);

}  // namespace bench
