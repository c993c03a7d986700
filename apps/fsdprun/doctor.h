#pragma once
/// \file
/// fsdprun --doctor: the launchers compare their hosts, and ranks measure what is between them.

#include <string>
#include <vector>

#include "nodes.h"
#include "signals.h"

namespace fsdprun {

/// Tells node 0 what this host is like; rank 0, which node 0 starts, finds there what all are like, and prints it.
/// Returns whether all are alike, in node 0; elsewhere true.
bool compare_hosts(Nodes& nodes, SignalQueue& signals);

/// What a rank does. `arguments`: the backend, and "text" or "json". Returns its exit status.
int run_doctor_rank(const std::vector<std::string>& arguments);

}  // namespace fsdprun
