// The phases in which the processes of a job are ended after a failure.

#include "launch/ending.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <vector>

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Phase = Ending::Phase;

constexpr std::chrono::milliseconds kNone{0};
constexpr std::chrono::milliseconds kLong = std::chrono::hours(1);

class EndingTest : public testing::Test {
 protected:
  Ending ending(std::chrono::milliseconds patience) {
    return Ending({patience, patience, patience}, [this](int signal) { sent.push_back(signal); });
  }
  std::vector<int> sent;
};

TEST_F(EndingTest, WithoutAFailureNothingIsEnded) {
  auto job = ending(kNone);
  job.advance();
  EXPECT_EQ(job.phase(), Phase::kRunning);
  EXPECT_EQ(job.deadline(), Ending::Clock::time_point::max());
  EXPECT_THAT(sent, IsEmpty());
}

TEST_F(EndingTest, EachPhaseFollowsTheOneBeforeWhenItsTimeIsOver) {
  auto job = ending(kNone);
  job.note_failure();
  for (const auto phase : {Phase::kPeersMayEnd, Phase::kAskedToEnd, Phase::kKilled, Phase::kGivenUp, Phase::kGivenUp}) {
    EXPECT_EQ(job.phase(), phase);
    if (phase == Phase::kPeersMayEnd) {
      EXPECT_THAT(sent, IsEmpty());
    }
    job.advance();
  }
  EXPECT_THAT(sent, ElementsAre(SIGTERM, SIGKILL));
}

TEST_F(EndingTest, NothingFollowsBeforeItsTimeAndAFurtherFailureDoesNotProlongIt) {
  auto job = ending(kLong);
  job.note_failure();
  const auto deadline = job.deadline();
  job.note_failure();
  job.advance();
  EXPECT_EQ(job.phase(), Phase::kPeersMayEnd);
  EXPECT_EQ(job.deadline(), deadline);
  EXPECT_THAT(sent, IsEmpty());
}

TEST_F(EndingTest, ASignalThatAsksIsPassedOnInEveryPhaseAndEndsTheWaitForPeersOnly) {
  auto job = ending(kLong);
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
