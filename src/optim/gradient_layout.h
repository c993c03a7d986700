#pragma once
/// \file
/// Checks and layout of gradients, so that kernels can process gradients and rows in parallel.

#include <ATen/core/Tensor.h>

#include <optional>

#include "comm/core/check.h"

namespace fsdp::optim {

/// Throws UsageError if the gradient, which users may assign, has other sizes than the rows. `whose` returns the
/// beginning of the message, "... parameter 'name'", and is called only for an error.
template <class Whose>
void require_sizes_of(const at::Tensor& rows, const at::Tensor& gradient, const Whose& whose) {
  if (gradient.sizes() == rows.sizes()) return;
  require(false, whose(), " has a gradient of the wrong sizes: expected ", rows.sizes(), ", found ", gradient.sizes(),
          ". Assign a gradient of the rows' sizes, or leave it to backward");
}

/// The gradient on the rows' device, with the rows' dtype or the given one, and with the rows' memory layout. Usually
/// this is the gradient itself; a sparse gradient, or one that was assigned in another layout, is copied. Sizes must be
/// equal, and the rows must be dense.
at::Tensor laid_out_as(const at::Tensor& rows, const at::Tensor& gradient,
                       std::optional<c10::ScalarType> dtype = std::nullopt);

}  // namespace fsdp::optim
