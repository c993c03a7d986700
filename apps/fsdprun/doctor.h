#pragma once
/// \file
/// Implements fsdprun --doctor: launchers compare their hosts, and ranks measure the connections between them.

#include <string>
#include <vector>

#include "nodes.h"
#include "signals.h"

namespace fsdprun {

/// Sends the facts of this host to node 0. Node 0 puts the facts of all hosts into the environment of its ranks, and
/// rank 0 prints them. Returns in node 0 whether all hosts are alike, and true in other nodes.
bool compare_hosts(Nodes& nodes, SignalQueue& signals);

/// Runs a rank of the doctor. `arguments` are the backend and "text" or "json". Returns the exit status.
int run_doctor_rank(const std::vector<std::string>& arguments);

}  // namespace fsdprun
