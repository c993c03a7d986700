#pragma once
/// \file
/// One order of operations: a thread that runs them first in, first out.

#include <fsdp/communicator.h>

#include "comm/c10d/mail.h"
#include "comm/c10d/wire.h"
#include "comm/core/fingerprint.h"
#include "comm/core/ranks.h"
#include "comm/failure/roll_call.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fsdp {

/// Runs collectives, or the messages of one direction between two ranks, in a thread of its own.
///
/// Nothing waits for ever: every wait ends by the wire's timeout or by the roll call. After a failure the lane is over:
/// whatever is queued or comes later fails with the same error. Thread safety: `submit` from one thread at a time.
class Lane {
 public:
  using MoveData = std::function<void()>;

  struct Options {
    /// Stands in errors.
    std::string name;
    Ranks ranks = {};
    std::chrono::milliseconds timeout{};
  };

  /// `mail`: over `wire`.
  Lane(std::shared_ptr<Wire> wire, std::shared_ptr<Mail> mail, std::shared_ptr<RollCall> roll_call, Options options);
  /// Ends what is in progress, within seconds.
  ~Lane();

  /// Queues a collective. `move_data` runs in the lane's thread, between begin() and finish() of the mail.
  [[nodiscard]] std::shared_ptr<Work> submit(Fingerprint fingerprint, MoveData move_data);

 private:
  class Ticket;
  struct Job {
    Fingerprint fingerprint;
    MoveData move_data;
    std::shared_ptr<Ticket> ticket;
  };
  class State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace fsdp
