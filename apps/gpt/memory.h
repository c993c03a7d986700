#pragma once
/// \file
/// What training holds in memory.

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpt {

/// Bytes. Of a sharded parameter those are of the rows that the rank holds.
struct HeldBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
};

/// Parameters and gradients are measured at the tensors.
HeldBytes held_bytes(const std::vector<at::Tensor>& parameters, int64_t optimizer_state);

}  // namespace gpt
