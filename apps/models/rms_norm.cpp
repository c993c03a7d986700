#include "models/rms_norm.h"

#include <torch/types.h>

namespace models {

RMSNormImpl::RMSNormImpl(int64_t dim, double eps) : weight(register_parameter("weight", torch::ones(dim))), eps_(eps) {}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) { return torch::rms_norm(x, weight.sizes(), weight, eps_); }

}  // namespace models
