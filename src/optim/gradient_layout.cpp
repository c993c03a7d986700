#include "optim/gradient_layout.h"

#include <ATen/ops/empty_strided.h>

namespace fsdp::optim {

at::Tensor laid_out_as(const at::Tensor& rows, const at::Tensor& gradient) {
  const bool is_dense = gradient.layout() == at::kStrided;
  const bool has_order =
      is_dense && (gradient.strides() == rows.strides() || (gradient.is_contiguous() && rows.is_contiguous()));
  if (has_order && gradient.scalar_type() == rows.scalar_type() && gradient.device() == rows.device()) return gradient;
  auto options = at::TensorOptions().dtype(rows.scalar_type()).device(rows.device());
  return at::empty_strided(rows.sizes(), rows.strides(), options).copy_(is_dense ? gradient : gradient.to_dense());
}

}  // namespace fsdp::optim
