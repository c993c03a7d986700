#pragma once
/// \file
/// One rank while it runs and after it ended.

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
  /// Empty if the rank writes where the launcher does; else stdout and stderr.
  std::list<RankStream> streams;
  /// Unset while it runs.
  std::optional<fsdp::ExitStatus> status;

  /// Before it was asked to.
  bool ended_by_itself = false;

  bool is_running() const { return !status; }
  /// To the rank and what it started.
  void send(int signal) const;
  /// What an uncaught exception said first.
  std::vector<std::string> last_error_lines() const;
};

}  // namespace fsdprun
