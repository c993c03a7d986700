#pragma once
/// \file
/// One rank: a process in a process group of its own.

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/posix/descriptor.h"
#include "signals.h"

namespace fsdprun {

/// What to execute; made before the fork, after which no memory may be allocated.
class Execution {
 public:
  Execution(const std::string& program, const std::vector<std::string>& arguments,
            std::vector<std::string> environment);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  /// Returns only if that fails, with errno set.
  void start() const;

 private:
  std::string program_;
  std::vector<std::string> arguments_, environment_;
  std::vector<char*> argument_pointers_, environment_pointers_;
};

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
pid_t start_rank(const Execution& execution, const StartOptions& options, const SignalQueue& signals, RankPipes& pipes);

}  // namespace fsdprun
