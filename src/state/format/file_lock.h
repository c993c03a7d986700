#pragma once
/// \file
/// A file lock that the kernel releases when the process ends.

#include <sys/file.h>
#include <unistd.h>

#include <utility>

#include "comm/posix/descriptor.h"

namespace fsdp::state {

/// A file that this process may lock. The destructor unlocks it explicitly, because a forked child that still has the
/// file open would otherwise keep the lock; in such a child it does not unlock.
class FileLock {
 public:
  explicit FileLock(Descriptor file) : file_(std::move(file)), owner_(::getpid()) {}
  ~FileLock() {
    if (file_.is_open() && ::getpid() == owner_) ::flock(file_.number(), LOCK_UN);
  }
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;

  /// Tries to take the lock without waiting. `kind`: LOCK_EX or LOCK_SH. Returns whether it is locked; otherwise errno
  /// says why.
  bool try_lock(int kind) const { return ::flock(file_.number(), kind | LOCK_NB) == 0; }
  int number() const { return file_.number(); }

 private:
  Descriptor file_;
  pid_t owner_;
};

}  // namespace fsdp::state
