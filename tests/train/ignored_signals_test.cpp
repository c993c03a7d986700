#include <gtest/gtest.h>
#include <signal.h>

#include "train/stop_signals.h"

namespace fsdp::train {
namespace {

// A shell ignores this signal in background commands of a script.
TEST(StopSignals, LeaveASignalIgnoredThatWasIgnoredBefore) {
  const auto before = signal(SIGINT, SIG_IGN);
  {
    const auto signals = StopSignals::of_process();
    raise(SIGINT);
    EXPECT_EQ(signals->received(), 0);
    raise(SIGTERM);
    EXPECT_EQ(signals->received(), SIGTERM);
  }
  EXPECT_EQ(signal(SIGINT, before), SIG_IGN);
}

}  // namespace
}  // namespace fsdp::train
