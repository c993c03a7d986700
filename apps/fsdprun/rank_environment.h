#pragma once
/// \file
/// The variables that a rank finds.

#include <string>
#include <vector>

#include "comm/posix/descriptor.h"
#include "console.h"
#include "flags.h"
#include "nodes.h"

namespace fsdprun {

/// This process's environment with those variables that torchrun sets, and where ranks say whom they blame.
std::vector<std::string> rank_environment(const Flags& flags, const Nodes& nodes, int local_rank,
                                          const fsdp::Descriptor& blame_board);

/// Sets OMP_NUM_THREADS=1 for several ranks if it is not set, and says so.
void limit_threads(int local_ranks, Console& console);

}  // namespace fsdprun
