#pragma once
/// \file
/// Signals that ask a training to end.

#include <signal.h>

#include <memory>

namespace fsdp::train {

/// While it lives, the first SIGTERM or SIGINT is only recorded, with a message on stderr, and the second one ends the
/// process. If a launcher counts the signals (Note [Two requests to end] in launch/end_requests.h), they are only
/// recorded here. Ignored signals stay ignored. The destructor restores the previous handlers, unless a signal has
/// come: then the handlers stay until the process ends, or until another object is destroyed without a signal. For the
/// launcher may send the same request again after the terminal did, and that must not end a process that has saved.
///
/// Note [The only variables of a signal's handler]
/// A handler belongs to the process and receives only the signal's number, so it must use global variables. Ranks that
/// are threads share them, hence one object serves all of them.
class StopSignals {
 public:
  /// The process's object, which is created if necessary. Any thread.
  static std::shared_ptr<const StopSignals> of_process();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The last signal since construction; 0: none. Any thread.
  int received() const;

 private:
  StopSignals();
};

}  // namespace fsdp::train
