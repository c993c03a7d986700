#pragma once
/// \file
/// Processes that left their rank's process group.

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace fsdprun {

/// Makes this process the parent of every orphan below it.
void adopt_orphans();

/// Kills every child of this process but `spared`, and what they leave, until there is none or `patience` is over.
/// Returns those that are left: another user's, or in a system call that no signal ends.
std::vector<pid_t> kill_descendants(pid_t spared, std::chrono::milliseconds patience);

}  // namespace fsdprun
