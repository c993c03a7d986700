#pragma once
/// \file
/// The value of --nproc-per-node.

#include <string>

namespace fsdprun {

/// "gpu": the GPUs that LibTorch sees; "cpu": the processors that this process may use; "auto": the
/// GPUs if there are any, else the processors; or a number. Throws Exit if `text` is none of these
/// or means no process.
int count_processes(const std::string& text);

}  // namespace fsdprun
