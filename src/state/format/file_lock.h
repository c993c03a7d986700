#pragma once
/// \file
/// The lock of a file, which the system takes back when the process ends.

#include <sys/file.h>
#include <unistd.h>

#include <utility>

#include "comm/posix/descriptor.h"

namespace fsdp::state {

/// A file that this process may lock. When it goes, the lock is free, also while a child that was forked has the file
/// open: closing it here would leave the lock to the child. In the child it unlocks nothing.
class FileLock {
 public:
  explicit FileLock(Descriptor file) : file_(std::move(file)), owner_(::getpid()) {}
  ~FileLock() {
    if (file_.is_open() && ::getpid() == owner_) ::flock(file_.number(), LOCK_UN);
  }
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;

  /// `kind`: LOCK_EX or LOCK_SH. Whether it is locked now; else errno says why not. Waits for nobody.
  bool try_lock(int kind) const { return ::flock(file_.number(), kind | LOCK_NB) == 0; }
  int number() const { return file_.number(); }

 private:
  Descriptor file_;
  pid_t owner_;
};

}  // namespace fsdp::state
