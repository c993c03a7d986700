#pragma once
/// \file
/// Measures the memory of a training.

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpt {

/// Bytes that a rank holds. For a sharded parameter they are the bytes of this rank's rows.
struct HeldBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
};

/// Returns the bytes of `parameters` and of their gradients, and `optimizer_state` as it is.
HeldBytes held_bytes(const std::vector<at::Tensor>& parameters, int64_t optimizer_state);

}  // namespace gpt
