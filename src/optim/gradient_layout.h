#pragma once
/// \file
/// Gradients that kernels can walk through beside the rows.

#include <ATen/core/Tensor.h>

#include "comm/check.h"

namespace fsdp::optim {

/// Throws UsageError if the gradient, which anybody may have assigned, has other sizes than the rows. `whose`: the
/// pieces of the message's beginning, "... parameter 'name'", put together only for an error.
template <class... Pieces>
void require_sizes_of(const at::Tensor& rows, const at::Tensor& gradient, const Pieces&... whose) {
  require(gradient.sizes() == rows.sizes(), whose..., " has a gradient of other sizes: expected ", rows.sizes(),
          ", found ", gradient.sizes(), ". Assign a gradient of the rows' sizes, or leave it to backward");
}

/// The gradient with the rows' dtype and device and its elements in memory in the rows' order: itself, as it nearly
/// always is, otherwise (a sparse one, or one that somebody assigned) a copy. Both have the same sizes, and the rows
/// are dense.
at::Tensor laid_out_as(const at::Tensor& rows, const at::Tensor& gradient);

}  // namespace fsdp::optim
