// The conclusions that ranks draw from each other's reports, and from where each other's threads stand.

#include "comm/failure/verdict.h"

#include "comm/failure/standing.h"
#include "comm/frame.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using Reports = std::vector<std::optional<Report>>;

constexpr std::chrono::milliseconds kAnswerTime{5000};

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
      // Rank 1 gave up first and broke its connections, and rank 0 saw that.
      {"the alarm was about a survivor", {broke_with(1), broke_with(2), std::nullopt}, kPeerLost, 2, {}},
      {"several ranks are silent", {broke_with(2), std::nullopt, std::nullopt}, kPeerLost, 2, {"ranks 1, 2 are lost"}},
      {"all are alive after a timeout",
       {broke_with(1), idle("barrier (#1), done 9 s ago"), alarmed(Cause::kTimeout, 1)},
       kMismatch,
       1,
       {"rank 1 is alive but did not join", "barrier (#1), done 9 s ago"}},
      // Ranks that are still connecting do not know whose end was closed.
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
    const auto verdict = decide({}, reports, kAnswerTime);
    EXPECT_EQ(verdict.kind, kind);
    if (kind != kError) {
      EXPECT_EQ(verdict.rank, blamed);
    }
    for (const auto& part : parts) EXPECT_THAT(verdict.text, HasSubstr(part));
  }
}

TEST(Verdict, InASubgroupNamesGlobalRanks) {
  const auto verdict = decide(kOdd, Reports{alarmed(Cause::kTransport, 1), std::nullopt}, kAnswerTime);
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

// A rank that has begun `begun` operations in the orders "a" and "b", and whose last one in `order` waits for `peer`.
Standing waiting(const std::string& order, uint64_t number, int peer, std::map<std::string, uint64_t> begun) {
  return {.moves = 7,
          .waits = {{order, number, peer, "barrier of '" + order + "'"}},
          .begun = std::move(begun),
          .operations = "barrier of '" + order + "', waiting"};
}

std::vector<Standing> two_in_different_orders() {
  return {waiting("a", 5, 1, {{"a", 5}, {"b", 2}}), waiting("b", 3, 0, {{"a", 4}, {"b", 3}})};
}

TEST(FindDeadlock, NamesTwoRanksThatWaitInDifferentOrders) {
  const auto standings = two_in_different_orders();
  const auto verdict = find_deadlock({}, standings, standings), of_odd = find_deadlock(kOdd, standings, standings);
  ASSERT_TRUE(verdict && of_odd);
  EXPECT_EQ(verdict->kind, Verdict::Kind::kMismatch);
  EXPECT_THAT(verdict->text,
              HasSubstr("rank 0 runs barrier of 'a'; rank 1 runs barrier of 'b'. Last operations: rank 0: "
                        "barrier of 'a', waiting; rank 1: barrier of 'b', waiting."));
  EXPECT_THAT(of_odd->text, HasSubstr("rank 1 runs barrier of 'a'; rank 3 runs barrier of 'b'. Last operations: "
                                      "rank 1: barrier of 'a', waiting; rank 3: barrier of 'b', waiting."));
}

TEST(FindDeadlock, CountsAnOrderThatAPeerNeverUsedAsNothingBegun) {
  const std::vector<Standing> ranks{waiting("0/1", 1, 1, {{"0/1", 1}}), waiting("1/0", 1, 0, {{"1/0", 1}})};
  EXPECT_TRUE(find_deadlock({}, ranks, ranks));
}

TEST(FindDeadlock, SeesNoneWhileSomethingMayGoOn) {
  const auto before = two_in_different_orders();
  auto under_way = before, computing = before, moved = before, other_thread = before;
  under_way[1].begun["a"] = 5;  // rank 1 has begun what rank 0 waits for
  EXPECT_FALSE(find_deadlock({}, under_way, under_way));
  computing[1].waits.clear();
  EXPECT_FALSE(find_deadlock({}, computing, computing));
  moved[1].moves = 8;  // it moved between the two questions
  EXPECT_FALSE(find_deadlock({}, before, moved));
  other_thread[0].waits.push_back({"b", 3, 1, "another thread's"});  // rank 1 has begun it
  EXPECT_FALSE(find_deadlock({}, other_thread, other_thread));
}

TEST(Messages, SurviveTheStore) {
  Report report{Cause::kTimeout, 3, "two\nlines", "", "detail with 12 numbers"};
  EXPECT_EQ(decode<Report>(encode(report)).fields(), report.fields());
  Verdict verdict{Verdict::Kind::kPeerLost, 1, "a\nb"};
  EXPECT_EQ(decode<Verdict>(encode(verdict)).fields(), verdict.fields());
  const auto sent = two_in_different_orders()[0], arrived = decode<Standing>(encode(sent));
  EXPECT_EQ(arrived.moves, sent.moves);
  EXPECT_EQ(arrived.begun, sent.begun);
  EXPECT_EQ(arrived.operations, sent.operations);
  ASSERT_EQ(arrived.waits.size(), 1u);
  EXPECT_EQ(arrived.waits[0].order, "a");
  EXPECT_EQ(arrived.waits[0].number, 5u);
  EXPECT_EQ(arrived.waits[0].peer, 1);
  EXPECT_EQ(arrived.waits[0].operation, "barrier of 'a'");
}

}  // namespace
}  // namespace fsdp::test
