#pragma once
/// \file
/// Handles signals that ask a training to end.

#include <signal.h>

#include <memory>

namespace fsdp::train {

/// While an object of this class lives, the first SIGTERM or SIGINT is only recorded, with a message on stderr, and the
/// second one ends the process. If a launcher counts the signals (Note [Two requests to end] in launch/end_requests.h),
/// this process only records them. Ignored signals stay ignored.
///
/// The destructor restores the previous handlers, unless a signal has come. In that case the handlers stay until the
/// process ends, or until another object that has received no signal is destroyed. The reason is that the launcher may
/// repeat a request that the terminal has already sent, and this repetition must not end a process that has saved.
///
/// Note [Variables of a signal handler]
/// A handler belongs to the process and receives only the signal's number, so it must use global variables. Ranks that
/// are threads of one process share these variables, so one object serves all of these ranks.
class StopSignals {
 public:
  /// Returns the process's object, and creates it if necessary. Any thread may call it.
  static std::shared_ptr<const StopSignals> of_process();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the last signal since construction, or 0 if none has come. Any thread may call it.
  int received() const;

 private:
  StopSignals();
};

}  // namespace fsdp::train
