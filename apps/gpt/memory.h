#pragma once
/// \file
/// What training holds in memory, measured at the tensors.

#include <torch/optim/adamw.h>

#include <string>
#include <vector>

namespace gpt {

/// Bytes of tensors. Of a sharded parameter those are the rows that the rank holds.
struct HeldBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
};

HeldBytes held_bytes(const std::vector<at::Tensor>& parameters, torch::optim::AdamW& optimizer);

/// "3.2 MB"; a megabyte is 10^6 bytes.
std::string bytes_text(int64_t bytes);

}  // namespace gpt
