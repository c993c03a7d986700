#include "memory.h"

namespace gpt {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.element_size()) : 0;
}

}  // namespace

HeldBytes held_bytes(const std::vector<at::Tensor>& parameters, int64_t optimizer_state) {
  HeldBytes held;
  held.optimizer_state = optimizer_state;
  for (const auto& parameter : parameters) {
    held.parameters += bytes_of(parameter);
    held.gradients += bytes_of(parameter.grad());
  }
  return held;
}

}  // namespace gpt
