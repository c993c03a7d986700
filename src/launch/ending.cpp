#include "launch/ending.h"

#include <signal.h>

namespace fsdp {

void Ending::note_failure() {
  if (phase_ == Phase::kRunning) enter(Phase::kPeersMayEnd, patience_.with_peers);
}

void Ending::ask(int signal) {
  send_(signal);
  if (phase_ < Phase::kAskedToEnd) enter(Phase::kAskedToEnd, patience_.with_the_asked);
}

void Ending::kill() {
  if (phase_ >= Phase::kKilled) return;
  send_(SIGKILL);
  enter(Phase::kKilled, patience_.with_the_killed);
}

void Ending::advance() {
  if (Clock::now() < deadline_) return;
  if (phase_ == Phase::kPeersMayEnd) return ask(SIGTERM);
  if (phase_ == Phase::kAskedToEnd) return kill();
  phase_ = Phase::kGivenUp;
  deadline_ = Clock::time_point::max();
}

void Ending::enter(Phase phase, std::chrono::milliseconds patience) {
  phase_ = phase;
  deadline_ = Clock::now() + patience;
}

}  // namespace fsdp
