// Tests of the phases in which a launcher ends the processes of a job after a failure.

#include "launch/ending.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <vector>

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Phase = Ending::Phase;

struct EndingTest : testing::Test {
  Ending ending(std::chrono::milliseconds patience) {
    return Ending({patience, patience, patience}, [this](int signal) { sent.push_back(signal); });
  }
  std::vector<int> sent;
};

TEST_F(EndingTest, EachPhaseFollowsTheOneBeforeAFailureWhenItsTimeIsOver) {
  auto job = ending(std::chrono::milliseconds(0));
  job.advance();
  EXPECT_EQ(job.phase(), Phase::kRunning);
  EXPECT_EQ(job.deadline(), Ending::Clock::time_point::max());
  job.note_failure();
  for (const auto phase : {Phase::kPeersMayEnd, Phase::kAskedToEnd, Phase::kKilled, Phase::kGivenUp, Phase::kGivenUp}) {
    EXPECT_EQ(job.phase(), phase);
    EXPECT_EQ(sent.empty(), phase == Phase::kPeersMayEnd);
    job.advance();
  }
  EXPECT_THAT(sent, ElementsAre(SIGTERM, SIGKILL));
}

TEST_F(EndingTest, NothingFollowsBeforeItsTimeAndAFurtherFailureDoesNotProlongIt) {
  auto job = ending(std::chrono::hours(1));
  job.note_failure();
  const auto deadline = job.deadline();
  job.note_failure();
  job.advance();
  EXPECT_EQ(job.phase(), Phase::kPeersMayEnd);
  EXPECT_EQ(job.deadline(), deadline);
  EXPECT_THAT(sent, IsEmpty());
}

TEST_F(EndingTest, ASignalThatAsksIsPassedOnInEveryPhaseAndEndsTheWaitForPeersOnly) {
  auto job = ending(std::chrono::hours(1));
  job.ask(SIGINT);
  EXPECT_EQ(job.phase(), Phase::kAskedToEnd);
  job.kill();
  job.ask(SIGINT);
  job.kill();
  EXPECT_EQ(job.phase(), Phase::kKilled);
  EXPECT_THAT(sent, ElementsAre(SIGINT, SIGKILL, SIGINT));
}

}  // namespace
}  // namespace fsdp
