#pragma once
/// \file
/// The arithmetic of Adadelta on flat tensors.

#include <ATen/core/Tensor.h>
#include <fsdp/optim.h>

namespace fsdp::optim {

/// Updates `rows`, `square_avg` and `acc_delta`, which are flat, dense and of one length, as `gradient` is: in one pass
/// over memory where they are fp32 or fp64 on the CPU, else by LibTorch's operators.
void update_by_adadelta(const at::Tensor& rows, const at::Tensor& gradient, const at::Tensor& square_avg,
                        const at::Tensor& acc_delta, const AdadeltaOptions& options);

}  // namespace fsdp::optim
