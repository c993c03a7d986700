#pragma once
/// \file
/// The tensors that an optimizer keeps of one parameter.

#include <torch/optim/optimizer.h>

#include <vector>

namespace fsdp::optim {

/// Where an element-wise optimizer of torch::optim or fsdp::optim keeps them, some undefined; none for the state of
/// another optimizer.
std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state);

}  // namespace fsdp::optim
