#pragma once
/// \file
/// Measures attention over one sequence that is split over ranks, compared with ranks that each compute their share
/// alone.

#include "arguments.h"

namespace bench {

/// Measures on every rank and prints on rank 0. Collective; main calls it through `run_as_ranks`.
void run_attention(const AttentionArguments& arguments);

}  // namespace bench
