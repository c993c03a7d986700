#pragma once
/// \file
/// Queues signals to the launcher, so that the launcher reads them one by one.

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>

#include "comm/posix/descriptor.h"
#include "launch/child.h"

namespace fsdprun {

/// While a SignalQueue exists, the signals that the launcher handles (SIGCHLD and the signals that it forwards) are
/// blocked in this thread and in threads that it starts, and wait in the queue. SIGPIPE is ignored. Some signals may be
/// ignored from the launcher's start, for example under nohup or in the background of a script; the launcher and its
/// ranks continue to ignore those.
class SignalQueue {
 public:
  SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// A descriptor that is readable if a signal waits.
  int descriptor() const { return descriptor_.number(); }
  /// Takes the next signal; nullopt if no signal waits.
  std::optional<int> next();
  /// Takes the next signal that asks the launcher to end, and drops other signals. Waits for at most `timeout`.
  std::optional<int> wait_for_end(std::chrono::milliseconds timeout);

  /// The signals that were blocked when the launcher started.
  const sigset_t& previous() const { return previous_; }
  /// True if SIGPIPE was ignored when the launcher started.
  bool ignored_broken_pipes() const { return ignored_broken_pipes_; }

 private:
  const fsdp::WaitedChildren waited_;
  sigset_t handled_;
  sigset_t previous_;
  bool ignored_broken_pipes_;
  fsdp::Descriptor descriptor_;
};

/// True if the signal `number` asks the program to end.
bool asks_for_end(int number);

}  // namespace fsdprun
