#pragma once
/// \file
/// Checks of gradients, and copies of gradients whose layout differs from that of the rows. A kernel can then go
/// through the memory of rows and gradients side by side.

#include <ATen/core/Tensor.h>

#include <optional>

#include "comm/core/check.h"

namespace fsdp::optim {

/// Throws UsageError if the gradient's sizes differ from the rows' sizes. This is possible because users can assign
/// gradients. `whose()` returns the beginning of the message, "... parameter 'name'". It is called only if there is an
/// error.
template <class Whose>
void require_sizes_of(const at::Tensor& rows, const at::Tensor& gradient, const Whose& whose) {
  if (gradient.sizes() == rows.sizes()) return;
  require(false, whose(), " has a gradient of the wrong sizes: expected ", rows.sizes(), ", found ", gradient.sizes(),
          ". Assign a gradient of the rows' sizes, or leave it to backward");
}

/// Returns the gradient with the rows' device and strides and with `dtype`, by default the rows' dtype. Usually the
/// result is the gradient itself. A gradient that is sparse or differs in one of these properties is copied. The sizes
/// of `rows` and `gradient` must be equal, and `rows` must have no gaps in memory.
at::Tensor laid_out_as(const at::Tensor& rows, const at::Tensor& gradient,
                       std::optional<c10::ScalarType> dtype = std::nullopt);

}  // namespace fsdp::optim
