#pragma once
/// \file
/// Watches the processes of other ranks on this host through the kernel.

#include <sys/types.h>

#include <map>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Tells whether the processes of ranks on this host have ended or are stopped. Thread-safe.
class Neighbours {
 public:
  /// `processes` maps each rank to its process id. The other functions number ranks as `processes` does.
  explicit Neighbours(const std::map<int, pid_t>& processes);

  bool has_ended(int rank) const;
  /// Returns whether the rank's process exists and is not stopped by a signal.
  bool is_running(int rank) const;
  /// Returns whether the rank is one of `processes` and its process is stopped by a signal.
  bool is_stopped(int rank) const;

 private:
  struct Process {
    pid_t number;
    Descriptor end;  // readable once the process has ended
  };
  std::map<int, Process> processes_;
};

}  // namespace fsdp
