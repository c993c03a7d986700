#pragma once
/// \file
/// The launcher, from flags to exit status.

#include "flags.h"

namespace fsdprun {

/// Runs the job. Returns 0, or the exit code of the rank that failed first (128 + number for a
/// signal). Throws Exit if the ranks cannot be started.
int launch(const Flags& flags);

}  // namespace fsdprun
