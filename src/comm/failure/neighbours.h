#pragma once
/// \file
/// The processes of other ranks on this host, as the kernel sees them.

#include <sys/types.h>

#include <map>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Thread safety: all of it.
class Neighbours {
 public:
  /// `processes`: by rank. Ranks are called here as the caller calls them.
  explicit Neighbours(const std::map<int, pid_t>& processes);

  bool has_ended(int rank) const;
  /// Whether the rank's process is there and not stopped by a signal.
  bool is_running(int rank) const;
  /// Whether the rank is one of these, whose process is stopped by a signal.
  bool is_stopped(int rank) const;

 private:
  struct Process {
    pid_t number;
    Descriptor end;  // can be read once the process has ended
  };
  std::map<int, Process> processes_;
};

}  // namespace fsdp
