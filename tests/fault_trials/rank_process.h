#pragma once
/// \file
/// A rank of a trial.

#include "launch/child.h"
#include "fault_trials/shared_report.h"
#include "fault_trials/trial.h"

namespace fsdp::test {

/// Forks the rank, which trains, meets its fault and says in `report` how it ended.
Child start_rank(const Trial& trial, int rank, int port, SharedReport& report);

}  // namespace fsdp::test
