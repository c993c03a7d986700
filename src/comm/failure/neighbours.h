#pragma once
/// \file
/// Watches the processes of other ranks on this host through the kernel.

#include <sys/types.h>

#include <map>
#include <set>
#include <vector>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Tells whether the processes of ranks on this host have ended or are stopped. A closed connection does not always
/// show that a rank died: a child that the rank forked may keep the connection open. Thread-safe except `wait`.
class Neighbours {
 public:
  /// `processes` maps each rank to its process id. The other functions number ranks as `processes` does.
  explicit Neighbours(const std::map<int, pid_t>& processes);

  bool empty() const { return processes_.empty(); }
  bool has_ended(int rank) const;
  /// Returns whether the rank's process exists and is not stopped by a signal.
  bool is_running(int rank) const;
  /// Returns whether the rank is one of `processes` and its process is stopped by a signal.
  bool is_stopped(int rank) const;
  /// Blocks until a process ends or the descriptor `stop` is readable. Returns the ranks whose processes have ended
  /// since the last call; none if `stop` is readable. If the kernel or a sandbox does not offer descriptors for
  /// processes, only `stop` ends the wait. Only one thread may call it.
  std::vector<int> wait(int stop);

 private:
  struct Process {
    pid_t number;
    Descriptor end;  // readable once the process has ended
  };
  std::map<int, Process> processes_;
  std::set<int> ended_;  // ranks that `wait` has returned
};

}  // namespace fsdp
