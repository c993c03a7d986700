#pragma once
/// \file
/// fsdp::optim::AdamW with decay on matrices only.

#include <fsdp/optim.h>

#include <vector>

#include "arguments.h"

namespace gpt {

/// Takes parameters whole or as rows: rows of a matrix are a matrix.
fsdp::optim::AdamW make_optimizer(const std::vector<at::Tensor>& parameters, const Arguments& arguments);

void set_learning_rate(fsdp::optim::AdamW& optimizer, double lr);

}  // namespace gpt
