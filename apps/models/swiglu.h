#pragma once
/// \file
/// A gated MLP.

#include <torch/nn/pimpl.h>

#include "models/layers.h"

namespace models {

/// Computes down(silu(gate(x)) * up(x)), without biases: Shazeer 2020, "GLU variants improve transformer". `x` and the
/// output have `dim` features, and the input of `down` has `hidden` features.
template <class Layers>
class SwiGLUOf : public torch::nn::Module {
 public:
  SwiGLUOf(int64_t dim, int64_t hidden, const Layers& layers);
  torch::Tensor forward(const torch::Tensor& x);

  typename Layers::Inward gate, up;
  typename Layers::Outward down;
};

class SwiGLUImpl : public SwiGLUOf<WholeLayers> {
 public:
  SwiGLUImpl(int64_t dim, int64_t hidden) : SwiGLUOf(dim, hidden, {.has_bias = false}) {}
};
TORCH_MODULE(SwiGLU);

}  // namespace models
