#pragma once
/// \file
/// Makes the optimizer of --optimizer. Only matrices have weight decay.

#include <fsdp/optim.h>

#include <memory>
#include <vector>

#include "arguments.h"

namespace gpt {

/// Makes the optimizer for whole or sharded parameters. Rows of a matrix form a matrix too, so both cases decay alike.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        const Arguments& arguments);

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

}  // namespace gpt
