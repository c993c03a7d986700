#pragma once
/// \file
/// Ends the processes of the ranks if the launcher itself is killed.

#include <sys/types.h>

#include "comm/posix/descriptor.h"

namespace fsdprun {

/// A small process that ends shortly after the launcher. The launcher sends it the process group of each rank through a
/// pipe. When the pipe closes because the launcher ended, however it ended, the guard kills the process groups that are
/// left. The kernel kills the ranks themselves (PR_SET_PDEATHSIG); the guard kills the processes that they started.
class OrphanGuard {
 public:
  /// Forks, so no other thread may run yet.
  OrphanGuard();
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  pid_t pid() const { return pid_; }
  void add(pid_t group) const;
  void remove(pid_t group) const;

 private:
  pid_t pid_;
  fsdp::Descriptor pipe_;
};

}  // namespace fsdprun
