#pragma once
/// \file
/// The launcher, from flags to exit status.

#include <string>

#include "flags.h"

namespace fsdprun {

/// Runs the job. Returns 0, or the exit code of the rank that failed first (128 + number for a signal); if the ranks
/// cannot be started, it says why and returns a status of its own.
int launch(const Flags& flags);

/// Prints "fsdprun: `message`" to stderr, and waits for a moment at most for whoever reads it.
void say(const std::string& message);

}  // namespace fsdprun
