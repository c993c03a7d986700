#pragma once
/// \file
/// `fsdp-bench checkpoint`: what saving and loading cost, beside plain files of the same bytes on the same disk.

#include "arguments.h"

namespace bench {

/// Saves and loads as one rank, rounds of plain files between them; rank 0 prints the result. Every write waits for the
/// disk, and nothing of what is read is in memory before. Collective. Throws fsdp::UsageError if the folder is in use.
void run_checkpoint(const CheckpointArguments& arguments);

}  // namespace bench
