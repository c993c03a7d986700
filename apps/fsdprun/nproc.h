#pragma once
/// \file
/// Computes the number of ranks from --nproc-per-node.

#include <string>

namespace fsdprun {

/// Returns the number of ranks. "gpu" means the number of GPUs that LibTorch sees; "cpu" the number of processors that
/// this process may use; "auto" the number of GPUs if there are any, else of processors. `text` may also be a number.
/// Throws Exit for other text and if the number is 0.
int count_processes(const std::string& text);

}  // namespace fsdprun
