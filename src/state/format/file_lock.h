#pragma once
/// \file
/// A file lock that the kernel releases when the process ends.

#include <sys/file.h>
#include <unistd.h>

#include <utility>

#include "comm/posix/descriptor.h"

namespace fsdp::state {

/// A file that this process can lock. The destructor unlocks the file explicitly, because a forked child that still has
/// the file open would otherwise keep the lock. In such a child the destructor does not unlock the file.
class FileLock {
 public:
  explicit FileLock(Descriptor file) : file_(std::move(file)), owner_(::getpid()) {}
  ~FileLock() {
    if (file_.is_open() && ::getpid() == owner_) ::flock(file_.number(), LOCK_UN);
  }
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;

  /// Tries to take the lock without waiting. `kind` is LOCK_EX or LOCK_SH. Returns true if this process now has the
  /// lock; otherwise errno says why it does not.
  bool try_lock(int kind) const { return ::flock(file_.number(), kind | LOCK_NB) == 0; }
  int number() const { return file_.number(); }

 private:
  Descriptor file_;
  pid_t owner_;
};

}  // namespace fsdp::state
