#pragma once
/// \file
/// Access to the state tensors of one parameter.

#include <torch/optim/optimizer.h>

#include <vector>

namespace fsdp::optim {

/// Returns pointers to one parameter's state tensors, some of which may be undefined. `state` belongs to an
/// element-wise optimizer of torch::optim or fsdp::optim; the list is empty for any other optimizer.
std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state);

}  // namespace fsdp::optim
