#pragma once
/// \file
/// Measures the memory that a step takes besides parameters and gradients if ranks split sequences or layers.

#include "arguments.h"

namespace bench {

/// Measures on every rank and prints on rank 0. Collective; main calls it through `run_as_ranks`.
void run_activations(const ActivationsArguments& arguments);

}  // namespace bench
