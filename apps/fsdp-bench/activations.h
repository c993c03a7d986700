#pragma once
/// \file
/// What a step holds beside parameters and their gradients, where ranks share sequences or layers.

#include "arguments.h"

namespace bench {

/// Measures on every rank and prints on rank 0. Collective, see `run_as_ranks`.
void run_activations(const ActivationsArguments& arguments);

}  // namespace bench
