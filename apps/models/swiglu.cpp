#include "models/swiglu.h"

#include <torch/types.h>

namespace models {

template <class Layers>
SwiGLUOf<Layers>::SwiGLUOf(int64_t dim, int64_t hidden, const Layers& layers)
    : gate(layers.inward(dim, hidden)), up(layers.inward(dim, hidden)), down(layers.outward(hidden, dim)) {
  register_module("gate", gate);
  register_module("up", up);
  register_module("down", down);
}

template <class Layers>
torch::Tensor SwiGLUOf<Layers>::forward(const torch::Tensor& x) {
  return down(torch::silu(gate(x)) * up(x));
}

template class SwiGLUOf<WholeLayers>;
template class SwiGLUOf<LayerParts>;

}  // namespace models
