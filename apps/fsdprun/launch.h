#pragma once
/// \file
/// The launcher, from flags to exit status.

#include "flags.h"

namespace fsdprun {

/// Runs the job. Returns 0, or the exit code of the rank that failed first (128 + number for a signal); if the ranks
/// cannot be started, it says why and returns a status of its own.
int launch(const Flags& flags);

}  // namespace fsdprun
