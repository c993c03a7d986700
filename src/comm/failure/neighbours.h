#pragma once
/// \file
/// The processes of other ranks on this host, as the kernel sees them.

#include <sys/types.h>

#include <map>
#include <set>
#include <vector>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Connections tell of a rank's death unless a child that it forked lives on and keeps them open; this does always.
/// Thread safety: all of it, but for `wait`.
class Neighbours {
 public:
  /// `processes`: by rank. Ranks are called here as the caller calls them.
  explicit Neighbours(const std::map<int, pid_t>& processes);

  bool empty() const { return processes_.empty(); }
  bool has_ended(int rank) const;
  /// Whether the rank's process is there and not stopped by a signal.
  bool is_running(int rank) const;
  /// Whether the rank is one of these, whose process is stopped by a signal.
  bool is_stopped(int rank) const;
  /// Blocks until a process ends; the ranks whose processes have ended since the last call. None once the descriptor
  /// `stop` can be read, nor where the kernel or a sandbox has no descriptors for processes. Thread safety: one thread.
  std::vector<int> wait(int stop);

 private:
  struct Process {
    pid_t number;
    Descriptor end;  // can be read once the process has ended
  };
  std::map<int, Process> processes_;
  std::set<int> ended_;  // those that `wait` has told
};

}  // namespace fsdp
