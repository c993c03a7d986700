// Tests of the conclusions that ranks draw from each other's reports.

#include "comm/failure/verdict.h"

#include "comm/frame.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using Reports = std::vector<std::optional<Report>>;

const std::string kSilence = "did not answer within 5.0 s";

Report idle(const std::string& operations) { return {Cause::kNone, -1, operations, "", ""}; }

Report alarmed(Cause cause, int peer) {
  return {cause, peer, "barrier (#2), waiting", "barrier (#2)", "Connection closed"};
}

const Ranks kOdd = Ranks{1, 4}.in_subgroup("odd", {1, 3});

struct Conclusion {
  const char* about;
  Reports reports;
  Verdict::Kind kind;
  int blamed;
  std::vector<std::string> parts;
};

TEST(Verdict, FollowsFromTheReports) {
  const auto broke_with = [](int peer) { return alarmed(Cause::kTransport, peer); };
  const Report left{Cause::kLeft, -1, "left", "", ""};
  using enum Verdict::Kind;
  const std::vector<Conclusion> conclusions{
      {"a rank does not answer",
       {broke_with(2), idle("none yet"), std::nullopt},
       kPeerLost,
       2,
       {"rank 2 is lost", "within 5.0 s", "rank 1: none yet; rank 2: no answer", "Connection closed"}},
      // Rank 1 gave up first and broke its connections, and rank 0 noticed that.
      {"the alarm was about a survivor", {broke_with(1), broke_with(2), std::nullopt}, kPeerLost, 2, {}},
      {"several ranks are silent", {broke_with(2), std::nullopt, std::nullopt}, kPeerLost, 2, {"ranks 1, 2 are lost"}},
      {"all are alive after a timeout",
       {broke_with(1), idle("barrier (#1), done 9 s ago"), alarmed(Cause::kTimeout, 1)},
       kMismatch,
       1,
       {"rank 1 is alive but did not join", "barrier (#1), done 9 s ago"}},
      // Ranks that are still connecting do not know which rank closed its end.
      {"a connection to nobody in particular broke",
       {broke_with(-1), broke_with(2), left},
       kPeerLost,
       2,
       {"rank 2 has left the process group"}},
      {"a rank has left", {broke_with(1), left}, kPeerLost, 1, {"rank 1 has left the process group"}},
      {"a connection between the living broke",
       {broke_with(1), idle("none yet")},
       kError,
       -1,
       {"the connection to rank 1 broke"}},
      {"there is nobody to blame", {broke_with(-1), idle("none yet")}, kError, -1, {"Connection closed"}}};
  for (const auto& [about, reports, kind, blamed, parts] : conclusions) {
    SCOPED_TRACE(about);
    const auto verdict = decide({}, reports, kSilence);
    EXPECT_EQ(verdict.kind, kind);
    if (kind != kError) {
      EXPECT_EQ(verdict.rank, blamed);
    }
    for (const auto& part : parts) EXPECT_THAT(verdict.text, HasSubstr(part));
  }
}

TEST(Verdict, InASubgroupNamesGlobalRanks) {
  const auto verdict = decide(kOdd, Reports{alarmed(Cause::kTransport, 1), std::nullopt}, kSilence);
  EXPECT_EQ(verdict.rank, 3);
  EXPECT_THAT(verdict.text, HasSubstr("rank 1: barrier (#2), waiting; rank 3: no answer"));
  expect_error<PeerLost>([&] { raise(verdict, kOdd, "barrier"); },
                         {"[fsdp rank 1/4, 'odd' 0/2] barrier: ", "rank 3 is lost"});
}

TEST(Verdict, OfALossAmongOtherRanksNamesTheOneThatIsLost) {
  EXPECT_EQ(failed_alone(kOdd, "backward", "no memory", std::nullopt).kind, Verdict::Kind::kMismatch);
  const auto verdict = failed_alone(kOdd, "backward", "rank 2 has ended", 2);
  EXPECT_EQ(verdict.rank, 2);
  expect_error<PeerLost>([&] { raise(verdict, kOdd, "barrier"); }, {"rank 1 failed in backward: rank 2 has ended"});
}

TEST(FindBlockingRank, FollowsThoseThatWaitToTheOneThatDoesNot) {
  struct Place {
    std::vector<int> waits_for;
    int asking, blocking;
  };
  const std::vector<Place> places{{{1, -1}, 0, 1},
                                  // Rank 2 may still begin the operation that the others need.
                                  {{1, 2, -1, 0}, 3, 2},
                                  {{1, 2, -1, 0}, 0, 2},
                                  // All ranks wait for each other.
                                  {{1, 2, 0}, 0, 1},
                                  {{1, 2, 0}, 1, 2},
                                  {{1, 2, 0}, 2, 0}};
  for (const auto& [waits_for, asking, blocking] : places) EXPECT_EQ(find_blocking_rank(waits_for, asking), blocking);
}

TEST(Messages, SurviveTheStore) {
  Report report{Cause::kTimeout, 3, "two\nlines", "", "detail with 12 numbers"};
  EXPECT_EQ(decode<Report>(encode(report)).fields(), report.fields());
  Verdict verdict{Verdict::Kind::kPeerLost, 1, "a\nb"};
  EXPECT_EQ(decode<Verdict>(encode(verdict)).fields(), verdict.fields());
}

}  // namespace
}  // namespace fsdp::test
