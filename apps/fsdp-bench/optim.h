#pragma once
/// \file
/// `fsdp-bench optim` compares steps of fsdp::optim's optimizers with those of torch::optim.

#include "arguments.h"

namespace bench {

/// On one rank, runs each optimizer on the rows of a model, and torch::optim's optimizer on plain tensors of the same
/// shapes, values and gradients. Prints one line of JSON: medians of the milliseconds and of the ratios in each round;
/// the bytes per second that a step of fsdp::optim reads and writes and, for comparison, those of a copy and of a + s b
/// in memory of the same size; and the largest difference between the parameters at the end.
void run_optim(const OptimArguments& arguments);

}  // namespace bench
