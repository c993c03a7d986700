#pragma once
/// \file
/// How the processes of a job are ended after a failure.

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace fsdp {

/// The state machine for the remaining processes of a job: they may end by themselves, then get SIGTERM, then SIGKILL,
/// and finally are given up, since a process of another user or in an uninterruptible system call might never end. One
/// thread.
class Ending {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Phase : uint8_t { kRunning, kPeersMayEnd, kAskedToEnd, kKilled, kGivenUp };
  struct Patience {
    std::chrono::milliseconds with_peers, with_the_asked;
    std::chrono::milliseconds with_the_killed = std::chrono::seconds(5);
  };

  /// `send` sends a signal to the remaining processes.
  Ending(Patience patience, std::function<void(int signal)> send) : patience_(patience), send_(std::move(send)) {}

  Phase phase() const { return phase_; }
  /// The beginning of the next phase.
  Clock::time_point deadline() const { return deadline_; }

  /// Moves from kRunning to kPeersMayEnd; no effect in other phases.
  void note_failure();
  /// Sends `signal`, and moves from kRunning or kPeersMayEnd to kAskedToEnd.
  void ask(int signal);
  /// Sends SIGKILL and moves to kKilled; no effect from kKilled on.
  void kill();
  /// Enters the next phase if its time has come.
  void advance();

 private:
  void enter(Phase phase, std::chrono::milliseconds patience);

  const Patience patience_;
  const std::function<void(int signal)> send_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace fsdp
