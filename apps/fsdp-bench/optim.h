#pragma once
/// \file
/// `fsdp-bench optim`: steps of fsdp::optim's optimizers beside those of torch::optim.

#include "arguments.h"

namespace bench {

/// Steps the rows of a model on one rank by each optimizer, in turns with torch::optim's on plain tensors of the same
/// sizes, values and gradients. Prints one line of JSON: medians of milliseconds and of the ratios within each round,
/// the bytes that our step reads and writes in a second beside those of a copy and of a + s b in memory of the size of
/// the rows, and how far the parameters of both are apart at the end.
void run_optim(const OptimArguments& arguments);

}  // namespace bench
