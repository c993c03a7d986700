#pragma once
/// \file
/// The environment variables of a rank.

#include <string>
#include <vector>

#include "comm/posix/descriptor.h"
#include "console.h"
#include "flags.h"
#include "nodes.h"

namespace fsdprun {

/// Returns this process's environment, the variables that torchrun sets, and a variable with the descriptor through
/// which ranks report which rank they blame.
std::vector<std::string> rank_environment(const Flags& flags, const Nodes& nodes, int local_rank,
                                          const fsdp::Descriptor& blame_board);

/// If there are several ranks and OMP_NUM_THREADS is not set, sets it to 1 and prints that.
void limit_threads(int local_ranks, Console& console);

}  // namespace fsdprun
