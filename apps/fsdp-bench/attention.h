#pragma once
/// \file
/// Measures attention over one sequence that is split over ranks, compared with ranks that each compute their share
/// alone.

#include "arguments.h"

namespace bench {

/// All ranks measure, and rank 0 prints the result. Collective; main calls it through `run_as_ranks`.
void run_attention(const AttentionArguments& arguments);

}  // namespace bench
