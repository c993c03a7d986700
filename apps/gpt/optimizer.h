#pragma once
/// \file
/// The optimizer of --optimizer with decay on matrices only.

#include <fsdp/optim.h>

#include <memory>
#include <vector>

#include "arguments.h"

namespace gpt {

/// Takes parameters whole or as rows: rows of a matrix are a matrix.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        const Arguments& arguments);

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

}  // namespace gpt
