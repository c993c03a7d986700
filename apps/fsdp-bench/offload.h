#pragma once
/// \file
/// `fsdp-bench offload`: what it costs to keep training state in files.

#include "arguments.h"

namespace bench {

/// Trains two models in turns, one in memory and one whose rows, gradients and optimizer state are in files, and writes
/// and reads plain files of the bytes that the latter moves. Each round has a step in memory, one with files that the
/// system has room to keep in memory, and one before which nothing of the files is in memory and after which all of it
/// goes to the disk, as where memory is short. Rank 0 prints medians as one line of JSON. Collective.
void run_offload(const OffloadArguments& arguments);

}  // namespace bench
