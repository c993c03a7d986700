#pragma once
/// \file
/// One rank of this node, while it runs and after it has ended.

#include <sys/types.h>

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "launch/child.h"
#include "output.h"

namespace fsdprun {

struct Rank {
  int number = 0;
  int local_number = 0;
  pid_t pid = 0;
  /// The pipes of stdout and stderr; empty if the rank writes directly to the launcher's output.
  std::list<RankStream> streams;
  /// Exit status; not set while the rank runs.
  std::optional<fsdp::ExitStatus> status;

  /// True if the rank ended before the launcher asked it to.
  bool ended_by_itself = false;

  bool is_running() const { return !status; }
  /// Sends a signal to the rank and the processes that it started, if the rank runs.
  void send(int signal) const;
  /// Returns the last lines on stderr, beginning with the message of an uncaught exception.
  std::vector<std::string> last_error_lines() const;
};

}  // namespace fsdprun
