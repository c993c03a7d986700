#pragma once
/// \file
/// A gated network.

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace models {

/// down(silu(gate(x)) * up(x)), without biases: Shazeer 2020, "GLU variants improve transformer". `x` and the result
/// have `dim` features, what lies between them `hidden`.
class SwiGLUImpl : public torch::nn::Module {
 public:
  SwiGLUImpl(int64_t dim, int64_t hidden);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Linear gate, up, down;
};
TORCH_MODULE(SwiGLU);

}  // namespace models
