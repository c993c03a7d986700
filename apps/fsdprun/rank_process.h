#pragma once
/// \file
/// One rank: a process in a process group of its own.

#include <sys/types.h>

#include "comm/posix/descriptor.h"
#include "launch/execution.h"
#include "signals.h"

namespace fsdprun {

struct RankPipes {
  /// The launcher's ends. Not open: the rank writes where the launcher does.
  fsdp::Descriptor out, err;
};

struct StartOptions {
  bool pipe_output = true;
  /// Else it reads nothing: there is no telling which rank a line is meant for, and a process
  /// outside the terminal's foreground group is stopped when it reads from it.
  bool inherit_stdin = false;
};

/// Starts a rank that dies with this thread's process. Throws Exit if the program cannot be executed.
pid_t start_rank(const fsdp::Execution& execution, const StartOptions& options, const SignalQueue& signals,
                 RankPipes& pipes);

}  // namespace fsdprun
