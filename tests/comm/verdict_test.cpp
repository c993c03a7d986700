#include "comm/failure/verdict.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Reports = std::vector<std::optional<Report>>;

constexpr std::chrono::milliseconds kAnswerTime{5000};

Report idle(const std::string& operations) { return {Cause::kNone, -1, operations, "", ""}; }

Report alarm(Cause cause, int peer) {
  return {cause, peer, "barrier (#2), waiting", "barrier (#2)", "Connection closed"};
}

TEST(Verdict, NamesTheRankThatDoesNotAnswer) {
  const auto verdict = decide({}, Reports{alarm(Cause::kTransport, 2), idle("none yet"), std::nullopt}, kAnswerTime);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kPeerLost);
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("rank 2 is lost"), HasSubstr("within 5.0 s"),
                                  HasSubstr("rank 1: none yet; rank 2: no answer"), HasSubstr("Connection closed")));
}

TEST(Verdict, NamesTheDeadRankThoughTheAlarmWasAboutASurvivor) {
  // Rank 1 gave up first and broke its connections, which is what rank 0 saw.
  const auto verdict =
      decide({}, Reports{alarm(Cause::kTransport, 1), alarm(Cause::kTransport, 2), std::nullopt}, kAnswerTime);
  EXPECT_EQ(verdict.rank, 2);
}

TEST(Verdict, OfSeveralSilentRanksNamesTheOneWaitedForAndListsAll) {
  const auto verdict = decide({}, Reports{alarm(Cause::kTransport, 2), std::nullopt, std::nullopt}, kAnswerTime);
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_THAT(verdict.text, HasSubstr("ranks 1, 2 are lost"));
}

TEST(Verdict, OfATimeoutWithAllAliveBlamesTheRankThatDidNotJoin) {
  const auto verdict =
      decide({}, Reports{alarm(Cause::kTransport, 1), idle("barrier (#1), done 9 s ago"), alarm(Cause::kTimeout, 1)},
             kAnswerTime);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kMismatch);
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("rank 1 is alive but did not join"), HasSubstr("barrier (#1), done 9 s ago")));
}

// Ranks that connect do not know whose end was closed.
TEST(Verdict, OfABrokenConnectionWithNobodyInParticularNamesTheRankThatLeft) {
  const Report left{Cause::kLeft, -1, "left", "", ""};
  const auto verdict =
      decide({}, Reports{alarm(Cause::kTransport, -1), alarm(Cause::kTransport, 2), left}, kAnswerTime);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kPeerLost);
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_THAT(verdict.text, HasSubstr("rank 2 has left the process group"));
}

TEST(Verdict, TellsARankThatLeftFromOneThatDied) {
  const auto verdict =
      decide({}, Reports{alarm(Cause::kTransport, 1), Report{Cause::kLeft, -1, "left", "", ""}}, kAnswerTime);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kPeerLost);
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_THAT(verdict.text, HasSubstr("rank 1 has left the process group"));
}

TEST(Verdict, OfABrokenConnectionBetweenTheLivingIsAnError) {
  const auto verdict = decide({}, Reports{alarm(Cause::kTransport, 1), idle("none yet")}, kAnswerTime);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kError);
  EXPECT_THAT(verdict.text, HasSubstr("the connection to rank 1 broke"));
}

TEST(Verdict, WithoutAPeerToBlameIsAnError) {
  const auto verdict = decide({}, Reports{alarm(Cause::kTransport, -1), idle("none yet")}, kAnswerTime);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kError);
  EXPECT_THAT(verdict.text, HasSubstr("Connection closed"));
}

TEST(Verdict, InASubgroupNamesGlobalRanks) {
  const Ranks ranks = Ranks{1, 4}.in_subgroup("odd", {1, 3});
  const auto verdict = decide(ranks, Reports{alarm(Cause::kTransport, 1), std::nullopt}, kAnswerTime);
  EXPECT_EQ(verdict.rank, 3);
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("rank 3 is lost"), HasSubstr("rank 1: barrier (#2), waiting; rank 3: no answer")));
  try {
    raise(verdict, ranks, "barrier");
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), 3);
    EXPECT_THAT(error.what(), HasSubstr("[fsdp rank 1/4, 'odd' 0/2] barrier: "));
  }
}

TEST(Verdict, OfALossAmongOtherRanksNamesTheOneThatIsLost) {
  const Ranks ranks = Ranks{1, 4}.in_subgroup("odd", {1, 3});
  EXPECT_EQ(failed_alone(ranks, "backward", "no memory", std::nullopt).kind, Verdict::Kind::kMismatch);
  try {
    raise(failed_alone(ranks, "backward", "rank 2 has ended", 2), ranks, "barrier");
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), 2);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 failed in backward: rank 2 has ended"));
  }
}

TEST(Verdict, AndReportSurviveTheStore) {
  const Report report{Cause::kTimeout, 3, "two\nlines", "", "detail with 12 numbers"};
  const Report copy = decode<Report>(encode(report));
  EXPECT_EQ(copy.cause, report.cause);
  EXPECT_EQ(copy.waiting_for, 3);
  EXPECT_EQ(copy.operations, report.operations);
  EXPECT_EQ(copy.failed_operation, "");
  EXPECT_EQ(copy.detail, report.detail);
  const Verdict verdict = decode<Verdict>(encode(Verdict{Verdict::Kind::kPeerLost, 1, "a\nb"}));
  EXPECT_EQ(verdict.kind, Verdict::Kind::kPeerLost);
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_EQ(verdict.text, "a\nb");
}

}  // namespace
}  // namespace fsdp
