#pragma once
/// \file
/// fsdp::optim::AdamW with decay on matrices only and a learning rate that follows a schedule.

#include <fsdp/optim.h>

#include <vector>

#include "arguments.h"

namespace gpt {

/// Takes parameters whole or as rows: rows of a matrix are a matrix.
fsdp::optim::AdamW make_optimizer(const std::vector<at::Tensor>& parameters, const Arguments& arguments);

/// Rises for `warmup` steps, then falls along half a cosine to a tenth of `lr`. `step` counts from 0.
double learning_rate(const Arguments& arguments, int64_t step);

void set_learning_rate(fsdp::optim::AdamW& optimizer, double lr);

}  // namespace gpt
