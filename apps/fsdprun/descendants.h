#pragma once
/// \file
/// Processes that left their rank's process group.

#include <sys/types.h>

namespace fsdprun {

/// Makes this process the parent of every orphan below it.
void adopt_orphans();

/// Kills every child of this process but `spared`, and what they leave, until there is none.
void kill_descendants(pid_t spared);

}  // namespace fsdprun
