// Tests of signals that request the end of a training. tests/spawn tests what they do to a whole job.

#include "train/stop_signals.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "launch/variables.h"

namespace fsdp::train {
namespace {

// Ctrl-C reaches a rank from the terminal, and once more from its launcher.
TEST(StopSignals, ARequestThatComesAgainAfterTrainingHasStoppedDoesNotEndTheRank) {
  setenv(kCountsSignalsVariable, "1", /*overwrite=*/1);
  {
    const auto signals = StopSignals::of_process();
    raise(SIGINT);
    EXPECT_EQ(signals->received(), SIGINT);
  }
  raise(SIGINT);
  EXPECT_EQ(StopSignals::of_process()->received(), 0) << "another training begins anew";
  unsetenv(kCountsSignalsVariable);
  for (const int number : {SIGTERM, SIGINT})
    EXPECT_EQ(signal(number, SIG_DFL), SIG_DFL) << "which no signal came to, so what was there before is back";
}

}  // namespace
}  // namespace fsdp::train
