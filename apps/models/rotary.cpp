#include "models/rotary.h"

#include <torch/types.h>

namespace models {

Rotations rotations(int64_t positions, int64_t dim, double base) {
  TORCH_CHECK_VALUE(dim % 2 == 0, "rotary embeddings need an even number of dimensions for each head, found ", dim);
  const auto in_double = torch::TensorOptions(torch::kDouble);
  const auto frequencies = torch::pow(base, torch::arange(0, dim, 2, in_double) / static_cast<double>(-dim));
  const auto angles = torch::outer(torch::arange(positions, in_double), frequencies);
  return {angles.cos().to(torch::kFloat), angles.sin().to(torch::kFloat)};
}

at::Tensor rotate(const at::Tensor& x, const Rotations& by) {
  const auto pairs = x.unflatten(-1, {-1, 2});
  const auto first = pairs.select(-1, 0), second = pairs.select(-1, 1);
  const auto turned = torch::stack({first * by.cos - second * by.sin, first * by.sin + second * by.cos}, -1);
  return turned.flatten(-2).to(x.scalar_type());
}

}  // namespace models
