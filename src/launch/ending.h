#pragma once
/// \file
/// How the processes of a job are ended after a failure.

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace fsdp {

/// Those that are left may end by themselves, then they are asked to, then killed, then given up: one in a system call
/// that no signal ends, or another user's, may stay for ever. Thread safety: one thread.
class Ending {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Phase : uint8_t { kRunning, kPeersMayEnd, kAskedToEnd, kKilled, kGivenUp };
  struct Patience {
    std::chrono::milliseconds with_peers, with_the_asked;
    std::chrono::milliseconds with_the_killed = std::chrono::seconds(5);
  };

  /// `send` passes a signal to those that are left.
  Ending(Patience patience, std::function<void(int signal)> send) : patience_(patience), send_(std::move(send)) {}

  Phase phase() const { return phase_; }
  /// When the next phase begins.
  Clock::time_point deadline() const { return deadline_; }

  /// kRunning -> kPeersMayEnd, later nothing.
  void note_failure();
  /// Sends the signal; kRunning, kPeersMayEnd -> kAskedToEnd.
  void ask(int signal);
  /// -> kKilled, unless that is over.
  void kill();
  /// The next phase, if it is time.
  void advance();

 private:
  void enter(Phase phase, std::chrono::milliseconds patience);

  const Patience patience_;
  const std::function<void(int signal)> send_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace fsdp
