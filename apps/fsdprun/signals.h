#pragma once
/// \file
/// Signals to the launcher, read one by one instead of interrupting it.

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>

#include "comm/posix/descriptor.h"
#include "launch/child.h"

namespace fsdprun {

/// While it lives, the signals that the launcher handles (SIGCHLD and those it forwards) are blocked
/// in this thread and in every thread started from it, and wait here. SIGPIPE is ignored. Those that the launcher was
/// started to ignore, as by nohup or in the background of a script, it and its ranks go on ignoring.
class SignalQueue {
 public:
  SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// Readable when a signal waits.
  int descriptor() const { return descriptor_.number(); }
  /// The next signal; nullopt if none waits.
  std::optional<int> next();
  /// The next signal that asks for the end. Waits for at most `timeout`; drops all others.
  std::optional<int> wait_for_end(std::chrono::milliseconds timeout);

  /// Those that the launcher found blocked.
  const sigset_t& previous() const { return previous_; }
  /// Whether it found SIGPIPE ignored.
  bool ignored_broken_pipes() const { return ignored_broken_pipes_; }

 private:
  const fsdp::WaitedChildren waited_;
  sigset_t handled_;
  sigset_t previous_;
  bool ignored_broken_pipes_;
  fsdp::Descriptor descriptor_;
};

/// Whether `number` asks for the end of the program.
bool asks_for_end(int number);

}  // namespace fsdprun
