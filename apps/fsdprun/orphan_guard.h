#pragma once
/// \file
/// What ends the ranks when the launcher itself is killed.

#include <sys/types.h>

#include "comm/posix/descriptor.h"

namespace fsdprun {

/// A small process that outlives the launcher by a moment. It learns of each rank's process group,
/// and when the pipe from the launcher closes, however the launcher ended, it kills those that are
/// left. The ranks themselves die with the launcher anyway (PR_SET_PDEATHSIG); this is for the
/// processes that they started.
class OrphanGuard {
 public:
  /// Forks: make it before this process starts threads.
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
