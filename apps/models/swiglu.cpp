#include "models/swiglu.h"

#include <torch/types.h>

namespace models {

SwiGLUImpl::SwiGLUImpl(int64_t dim, int64_t hidden)
    : gate(torch::nn::LinearOptions(dim, hidden).bias(false)),
      up(torch::nn::LinearOptions(dim, hidden).bias(false)),
      down(torch::nn::LinearOptions(hidden, dim).bias(false)) {
  register_module("gate", gate);
  register_module("up", up);
  register_module("down", down);
}

torch::Tensor SwiGLUImpl::forward(const torch::Tensor& x) { return down(torch::silu(gate(x)) * up(x)); }

}  // namespace models
