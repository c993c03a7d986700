#pragma once
/// \file
/// A rank of a trial, which trains, and meets its fault where it passes a fault point.

#include "fault_trials/trial.h"
#include "launch/child.h"

namespace fsdp::test {

/// Forks the rank, which says in `report` how it ended.
Child start_rank(const Trial& trial, int rank, int port, SharedReport& report);

/// Trains as the rank that the launcher's variables name, over the backend "hierarchical", and prints "hash NUMBER",
/// and how often it passed each fault point; a line for each. By the variables HOST_FAULT (rank, launcher or link),
/// HOST_FAULT_RANK, HOST_FAULT_POINT and HOST_FAULT_PASSAGE a rank loses itself, its launcher, or its host's network
/// where it passes the point so often. HOST_TIMEOUT_MS: of the process group. Returns the program's status.
int train_as_rank_of_a_host();

}  // namespace fsdp::test
