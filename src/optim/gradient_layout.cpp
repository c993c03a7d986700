#include "optim/gradient_layout.h"

#include <ATen/ops/empty_strided.h>

namespace fsdp::optim {

at::Tensor laid_out_as(const at::Tensor& rows, const at::Tensor& gradient, std::optional<c10::ScalarType> dtype) {
  const auto options = at::TensorOptions().dtype(dtype.value_or(rows.scalar_type())).device(rows.device());
  const bool is_dense = gradient.layout() == at::kStrided;
  const bool has_order =
      is_dense && (gradient.strides() == rows.strides() || (gradient.is_contiguous() && rows.is_contiguous()));
  if (has_order && gradient.dtype() == options.dtype() && gradient.device() == rows.device()) return gradient;
  return at::empty_strided(rows.sizes(), rows.strides(), options).copy_(is_dense ? gradient : gradient.to_dense());
}

}  // namespace fsdp::optim
