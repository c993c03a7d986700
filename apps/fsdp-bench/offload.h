#pragma once
/// \file
/// `fsdp-bench offload` measures training with training state in files.

#include "arguments.h"

namespace bench {

/// Trains two models, one in memory and one whose rows, gradients and optimizer state are in files. Each round has
/// three steps and a measurement of plain files. The first step is in memory. The second step uses files that the
/// system can cache. Before the third step no part of the files is in memory, and after it they are all written to the
/// disk, as if memory was short. Then the round writes and reads plain files of as many bytes as the third step moved.
/// Rank 0 prints medians as one line of JSON. Collective.
void run_offload(const OffloadArguments& arguments);

}  // namespace bench
