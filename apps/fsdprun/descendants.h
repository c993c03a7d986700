#pragma once
/// \file
/// Finds and kills processes that left their rank's process group.

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace fsdprun {

/// Makes this process the parent of every orphan among its descendants.
void adopt_orphans();

/// Kills every child of this process but `spared`. Children of killed processes become children of this process, and
/// are killed too. Returns when no child is left or `patience` is over. Returns the processes that it could not kill,
/// because they belong to another user or are inside a system call that no signal interrupts.
std::vector<pid_t> kill_descendants(pid_t spared, std::chrono::milliseconds patience);

}  // namespace fsdprun
