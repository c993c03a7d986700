#pragma once
/// \file
/// Access to the state tensors of one parameter.

#include <torch/optim/optimizer.h>

#include <vector>

namespace fsdp::optim {

/// Pointers to the state tensors of an element-wise optimizer of torch::optim or fsdp::optim, some of which may be
/// undefined; empty for other optimizers.
std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state);

}  // namespace fsdp::optim
