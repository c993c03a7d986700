#pragma once
/// \file
/// Gradients that kernels can walk through beside the rows.

#include <ATen/core/Tensor.h>

#include <optional>

#include "comm/core/check.h"

namespace fsdp::optim {

/// Throws UsageError if the gradient, which anybody may have assigned, has other sizes than the rows. `whose`: gives
/// the message's beginning, "... parameter 'name'"; called only for an error.
template <class Whose>
void require_sizes_of(const at::Tensor& rows, const at::Tensor& gradient, const Whose& whose) {
  if (gradient.sizes() == rows.sizes()) return;
  require(false, whose(), " has a gradient of other sizes: expected ", rows.sizes(), ", found ", gradient.sizes(),
          ". Assign a gradient of the rows' sizes, or leave it to backward");
}

/// The gradient with the rows' device, their dtype or the given one, and its elements in memory in the rows' order:
/// itself, as it nearly always is, otherwise (a sparse one, or one that somebody assigned) a copy. Both have the same
/// sizes, and the rows are dense.
at::Tensor laid_out_as(const at::Tensor& rows, const at::Tensor& gradient,
                       std::optional<c10::ScalarType> dtype = std::nullopt);

}  // namespace fsdp::optim
