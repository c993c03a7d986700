#pragma once
/// \file
/// Signals that would end the process and that the library blocks, and signals that it leaves alone.

#include <signal.h>

namespace fsdp {

// Note [SIGPIPE]
// Gloo and the server of the rendezvous store write to sockets without MSG_NOSIGNAL. A write to a connection that the
// peer has closed raises SIGPIPE in the writing thread, which by default ends the program. (Python ignores the signal,
// so its users do not see this.) The program decides how it handles signals, so the library leaves the disposition
// alone and blocks the signal in the threads that write: its own, and those that Gloo and the store start, which
// inherit the mask of the thread that starts them. The write then fails with EPIPE.

/// While it lives, blocks a signal that the calling thread's own writes raise.
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
    // A signal that arrived meanwhile would be delivered when it is unblocked, so it is consumed here.
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

/// Blocks SIGPIPE. See Note [SIGPIPE].
using PipeSignalBlocked = WriteSignalBlocked<SIGPIPE>;
/// Blocks SIGXFSZ. Beyond the limit on the size of files (ulimit -f), writes to a file and calls that extend it raise
/// this signal. While it is blocked they fail with EFBIG.
using FileLimitSignalBlocked = WriteSignalBlocked<SIGXFSZ>;

/// Returns whether the process ignores the signal. A signal that the process has ignored from its start, as after nohup
/// or in the background of a script, is not meant for it. The library neither handles nor blocks such a signal, because
/// a blocked signal stays pending even if it is ignored.
inline bool is_ignored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace fsdp
