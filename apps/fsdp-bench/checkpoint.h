#pragma once
/// \file
/// `fsdp-bench checkpoint` measures saving and loading, compared with plain files of the same bytes on the same disk.

#include "arguments.h"

namespace bench {

/// As one rank, saves and loads checkpoints, and writes and reads plain files. Rank 0 prints the result. Every write
/// waits for the disk, and no file is in memory before it is read. Collective. Throws fsdp::UsageError if another run
/// uses the folder.
void run_checkpoint(const CheckpointArguments& arguments);

}  // namespace bench
