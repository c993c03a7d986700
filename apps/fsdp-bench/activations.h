#pragma once
/// \file
/// Measures the memory that a step takes besides parameters and gradients if ranks split sequences or layers.

#include "arguments.h"

namespace bench {

/// All ranks measure, and rank 0 prints the result. Collective; main calls it through `run_as_ranks`.
void run_activations(const ActivationsArguments& arguments);

}  // namespace bench
