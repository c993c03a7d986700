#pragma once
/// \file
/// Attention of one sequence over ranks, beside ranks that compute their share of it alone.

#include "arguments.h"

namespace bench {

/// Measures on every rank and prints on rank 0. Collective, see `run_as_ranks`.
void run_attention(const AttentionArguments& arguments);

}  // namespace bench
