#pragma once
/// \file
/// Signals that the library keeps from ending the process, and those that nobody handles.

#include <signal.h>

namespace fsdp {

// Note [SIGPIPE]
// Gloo and the server of the rendezvous store write to sockets without MSG_NOSIGNAL: a write to a connection whose
// other end has gone raises SIGPIPE in the thread that writes, which ends a program that did not ask for anything else.
// (Python ignores the signal, so its users do not see this.) What a program does about a signal is its own business, so
// the library leaves the disposition alone and blocks the signal in the threads that write: its own, and those that
// Gloo and the store start, which inherit the mask of the thread that starts them. The write fails with EPIPE then.

/// Blocks a signal that the thread's own writes raise, while it lives.
template <int kSignal>
class WriteSignalBlocked {
 public:
  WriteSignalBlocked() {
    sigset_t before;
    sigemptyset(&blocked_);
    sigaddset(&blocked_, kSignal);
    pthread_sigmask(SIG_BLOCK, &blocked_, &before);
    was_blocked_ = sigismember(&before, kSignal) == 1;
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
using PipeSignalBlocked = WriteSignalBlocked<SIGPIPE>;
/// Beyond the limit on the size of files (ulimit -f) writing to a file and making it longer raise SIGXFSZ. They fail
/// with EFBIG then.
using FileLimitSignalBlocked = WriteSignalBlocked<SIGXFSZ>;

/// Whether the process ignores the signal. One that it ignored from its start, as after nohup or in the background of
/// a script, was not meant for it, so nobody handles it or blocks it: a blocked signal waits although it is ignored.
inline bool is_ignored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace fsdp
