#pragma once
/// \file
/// Signals that ask for the end of a training.

#include <signal.h>

#include <memory>

namespace fsdp::train {

/// While it lives, the first SIGTERM or SIGINT ends nothing: that it came is remembered, for whoever asks, and said on
/// stderr. The second one ends the process. Where a launcher counts them (Note [Two requests to end] in
/// launch/end_requests.h), it does both, and here they are only remembered. A signal that was ignored stays ignored.
/// Afterwards they do what they did before. If one came, the handlers stay, until the process ends or another object is
/// made and goes without a signal: the launcher may send the same request again after the terminal did, and that must
/// not end a process that has saved.
///
/// Note [The only variables of a signal's handler]
/// A handler is the process's and gets nothing but the signal's number, so what it reads and writes are variables of
/// the process. Ranks that are threads share all of it, so there is one object for all of them.
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
};

}  // namespace fsdp::train
