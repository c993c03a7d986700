#pragma once
/// \file
/// The order in which contributions are added, which decides the bits of the result.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <span>

namespace fsdp {

/// output = scale * (((c[0] + c[1]) + c[2]) + ...); or the maximum or minimum. At least two contributions, flat, of one
/// size.
///
/// Uses the contributions as scratch memory, except c[own], which stays as it is; `output` may be c[own] itself. On the
/// CPU it stays in the calling thread.
void reduce_in_rank_order(const at::Tensor& output, std::span<const at::Tensor> contributions, int own, ReduceOp op,
                          double scale = 1.0);

/// tensor *= scale, in the calling thread on the CPU.
void scale_in_place(const at::Tensor& tensor, double scale);

}  // namespace fsdp
