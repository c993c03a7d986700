#pragma once
/// \file
/// Keeps a broken connection from ending the process.

#include <signal.h>

namespace fsdp {

// Note [SIGPIPE]
// Gloo and the server of the rendezvous store write to sockets without MSG_NOSIGNAL: a write to a connection whose
// other end has gone raises SIGPIPE in the thread that writes, which ends a program that did not ask for anything else.
// (Python ignores the signal, so its users do not see this.) What a program does about a signal is its own business, so
// the library leaves the disposition alone and blocks the signal in the threads that write: its own, and those that
// Gloo and the store start, which inherit the mask of the thread that starts them. The write fails with EPIPE then.

/// Blocks SIGPIPE in this thread while it lives. See Note [SIGPIPE].
class PipeSignalBlocked {
 public:
  PipeSignalBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalBlocked() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    // One that came meanwhile would be delivered as soon as it is let through.
    const timespec at_once{};
    sigtimedwait(&pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_UNBLOCK, &pipe_, nullptr);
  }
  PipeSignalBlocked(const PipeSignalBlocked&) = delete;
  PipeSignalBlocked& operator=(const PipeSignalBlocked&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

}  // namespace fsdp
