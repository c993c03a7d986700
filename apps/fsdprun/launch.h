#pragma once
/// \file
/// Runs the launcher, from parsed flags to the exit status.

#include <string>

#include "flags.h"

namespace fsdprun {

/// Runs the job. Returns 0, or the exit status of the rank that failed first (128 + the signal's number if a signal
/// ended it). If the ranks cannot be started, prints the reason and returns an exit status of the launcher.
int launch(const Flags& flags);

/// Prints "fsdprun: `message`" to stderr, and waits at most 2 seconds for a slow reader.
void say(const std::string& message);

}  // namespace fsdprun
