#pragma once
/// \file
/// Rotary position embeddings.

#include <ATen/core/Tensor.h>

namespace models {

/// Cosines and sines of the angle of each position and each pair of features. Both tensors have the shape [positions,
/// dim / 2].
struct Rotations {
  at::Tensor cos, sin;
};

/// Returns the angles of Su et al. 2021, "RoFormer", section 3.2.2: position * base^(-2 i / dim) for pair i. `dim` must
/// be even.
Rotations rotations(int64_t positions, int64_t dim, double base = 10000);

/// Rotates each pair (x[2 i], x[2 i + 1]) of the last dim by the angle of its position. `x` has the shape [..., tokens,
/// dim], and `by` holds the rotations of these tokens. The scores of rotated queries and keys depend only on the
/// distance between their positions.
at::Tensor rotate(const at::Tensor& x, const Rotations& by);

}  // namespace models
