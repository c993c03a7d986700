#pragma once
/// \file
/// Keeps a broken connection, or a file that grows too large, from ending the process.

#include <signal.h>

namespace fsdp {

// Note [SIGPIPE]
// Gloo and the server of the rendezvous store write to sockets without MSG_NOSIGNAL: a write to a connection whose
// other end has gone raises SIGPIPE in the thread that writes, which ends a program that did not ask for anything else.
// (Python ignores the signal, so its users do not see this.) What a program does about a signal is its own business, so
// the library leaves the disposition alone and blocks the signal in the threads that write: its own, and those that
// Gloo and the store start, which inherit the mask of the thread that starts them. The write fails with EPIPE then.

/// Blocks a signal that the thread's own writes raise, while it lives.
class WriteSignalBlocked {
 public:
  explicit WriteSignalBlocked(int signal) {
    sigset_t before;
    sigemptyset(&blocked_);
    sigaddset(&blocked_, signal);
    pthread_sigmask(SIG_BLOCK, &blocked_, &before);
    was_blocked_ = sigismember(&before, signal) == 1;
  }
  ~WriteSignalBlocked() {
    if (was_blocked_) return;
    // One that came meanwhile would be delivered as soon as it is let through.
    const timespec at_once{};
    sigtimedwait(&blocked_, nullptr, &at_once);
    pthread_sigmask(SIG_UNBLOCK, &blocked_, nullptr);
  }
  WriteSignalBlocked(const WriteSignalBlocked&) = delete;
  WriteSignalBlocked& operator=(const WriteSignalBlocked&) = delete;

 private:
  sigset_t blocked_{};
  bool was_blocked_ = false;
};

/// See Note [SIGPIPE].
class PipeSignalBlocked : WriteSignalBlocked {
 public:
  PipeSignalBlocked() : WriteSignalBlocked(SIGPIPE) {}
};

/// Beyond the limit on the size of files (ulimit -f) writing to a file and making it longer raise SIGXFSZ. They fail
/// with EFBIG then.
class FileLimitSignalBlocked : WriteSignalBlocked {
 public:
  FileLimitSignalBlocked() : WriteSignalBlocked(SIGXFSZ) {}
};

}  // namespace fsdp
