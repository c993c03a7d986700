#include "memory.h"

#include <cstdio>
#include <string>

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

std::string bytes_text(int64_t bytes) {
  char text[32];
  const double megabytes = static_cast<double>(bytes) / 1e6;
  std::snprintf(text, sizeof(text), megabytes < 10 ? "%.2f MB" : "%.1f MB", megabytes);
  return text;
}

}  // namespace gpt
