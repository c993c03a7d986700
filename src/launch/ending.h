#pragma once
/// \file
/// The end of a job's processes after a failure.

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace fsdp {

/// The state machine that ends the remaining processes of a job. First it lets them end by themselves, then it sends
/// SIGTERM, then SIGKILL. Finally it stops waiting, because a process of another user or in an uninterruptible system
/// call might never end. Used by one thread.
class Ending {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Phase : uint8_t { kRunning, kPeersMayEnd, kAskedToEnd, kKilled, kGivenUp };
  /// Durations of the phases kPeersMayEnd, kAskedToEnd and kKilled.
  struct Patience {
    std::chrono::milliseconds with_peers, with_the_asked;
    std::chrono::milliseconds with_the_killed = std::chrono::seconds(5);
  };

  /// `send` sends a signal to the remaining processes.
  Ending(Patience patience, std::function<void(int signal)> send) : patience_(patience), send_(std::move(send)) {}

  Phase phase() const { return phase_; }
  /// Returns the time at which `advance` enters the next phase.
  Clock::time_point deadline() const { return deadline_; }

  /// Moves from kRunning to kPeersMayEnd. Does nothing in other phases.
  void note_failure();
  /// Sends `signal` in any phase, and moves from kRunning or kPeersMayEnd to kAskedToEnd.
  void ask(int signal);
  /// Sends SIGKILL and moves to kKilled. Does nothing in kKilled and kGivenUp.
  void kill();
  /// Enters the next phase if the deadline has passed.
  void advance();

 private:
  void enter(Phase phase, std::chrono::milliseconds patience);

  const Patience patience_;
  const std::function<void(int signal)> send_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace fsdp
