#pragma once
/// \file
/// Starts a rank as a process in its own process group.

#include <sys/types.h>

#include "comm/posix/descriptor.h"
#include "launch/execution.h"
#include "signals.h"

namespace fsdprun {

struct RankPipes {
  /// The launcher's ends of the pipes. They are not open if the rank writes directly to the launcher's output.
  fsdp::Descriptor out, err;
};

struct StartOptions {
  bool pipe_output = true;
  /// True if the rank reads the launcher's stdin. Otherwise its stdin is empty: with several ranks it would be unclear
  /// which of them should get a line, and the terminal stops a process outside its foreground group that reads from it.
  bool inherit_stdin = false;
};

/// Starts a rank. The kernel kills the rank when this process ends. Throws Exit if the program cannot be executed.
pid_t start_rank(const fsdp::Execution& execution, const StartOptions& options, const SignalQueue& signals,
                 RankPipes& pipes);

}  // namespace fsdprun
