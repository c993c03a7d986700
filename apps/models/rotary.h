#pragma once
/// \file
/// Positions as rotations.

#include <ATen/core/Tensor.h>

namespace models {

/// For each position and each pair of dimensions an angle's cosine and sine, both [positions, dim / 2].
struct Rotations {
  at::Tensor cos, sin;
};

/// Angles of Su et al. 2021, "RoFormer", section 3.2.2: position * base^(-2 i / dim) for pair i. `dim` is even.
Rotations rotations(int64_t positions, int64_t dim, double base = 10000);

/// Turns each pair (x[2 i], x[2 i + 1]) of the last dimension by its position's angle. `x`: [..., tokens, dim]; of the
/// rotations, tokens positions. Scores between turned queries and keys depend on the distance of their positions only.
at::Tensor rotate(const at::Tensor& x, const Rotations& by);

}  // namespace models
