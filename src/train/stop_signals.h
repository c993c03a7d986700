#pragma once
/// \file
/// Signals that ask for the end of a training.

#include <signal.h>

#include <memory>

namespace fsdp::train {

/// While it lives, SIGTERM and SIGINT end nothing: that they came is remembered, for whoever asks. Then they do what
/// they did before. One that the process ignores, as in the background of a script, stays ignored.
///
/// Note [The only variable of a signal's handler]
/// A handler is the process's and gets nothing but the signal's number, so what it writes is a variable of the process.
/// Ranks that are threads share both, so there is one object for all of them.
class StopSignals {
 public:
  /// The process's; made if there is none. Any thread.
  static std::shared_ptr<const StopSignals> of_process();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came last since this was made; 0: none. Any thread.
  int received() const;

 private:
  StopSignals();
  struct sigaction previous_terminate_ {}, previous_interrupt_ {};
};

}  // namespace fsdp::train
