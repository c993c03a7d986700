#include "comm/failure/standing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp {
namespace {

using testing::HasSubstr;

// Has begun `begun` operations of each of the orders "a" and "b", and waits for `peer` in `order` with its last one.
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
  const auto ranks = two_in_different_orders();
  const auto verdict = find_deadlock({}, ranks, ranks);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->kind, Verdict::Kind::kMismatch);
  EXPECT_THAT(verdict->text,
              HasSubstr("rank 0 runs barrier of 'a'; rank 1 runs barrier of 'b'. Last operations: rank 0: "
                        "barrier of 'a', waiting; rank 1: barrier of 'b', waiting."));
}

TEST(FindDeadlock, InASubgroupNamesGlobalRanks) {
  const auto standings = two_in_different_orders();
  const auto verdict = find_deadlock(Ranks{1, 4}.in_subgroup("odd", {1, 3}), standings, standings);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->text, HasSubstr("rank 1 runs barrier of 'a'; rank 3 runs barrier of 'b'. Last operations: "
                                       "rank 1: barrier of 'a', waiting; rank 3: barrier of 'b', waiting."));
}

TEST(FindDeadlock, WaitsForAnOperationThatHasBegunAndIsUnderWay) {
  auto ranks = two_in_different_orders();
  ranks[1].begun["a"] = 5;  // what rank 0 waits for was sent
  EXPECT_FALSE(find_deadlock({}, ranks, ranks));
}

TEST(FindDeadlock, SeesNoneWhileARankComputes) {
  auto ranks = two_in_different_orders();
  ranks[1].waits.clear();
  EXPECT_FALSE(find_deadlock({}, ranks, ranks));
}

TEST(FindDeadlock, SeesNoneIfARankMovedBetweenTheQuestions) {
  const auto before = two_in_different_orders();
  auto now = before;
  now[1].moves = 8;
  EXPECT_FALSE(find_deadlock({}, before, now));
}

TEST(FindDeadlock, SeesNoneWhileOneOfARanksThreadsMayGoOn) {
  auto ranks = two_in_different_orders();
  ranks[0].waits.push_back({"b", 3, 1, "another thread's"});  // which rank 1 has begun
  EXPECT_FALSE(find_deadlock({}, ranks, ranks));
}

TEST(FindDeadlock, CountsAnOrderThatAPeerNeverUsedAsNothingBegun) {
  const std::vector<Standing> ranks{waiting("0/1", 1, 1, {{"0/1", 1}}), waiting("1/0", 1, 0, {{"1/0", 1}})};
  EXPECT_TRUE(find_deadlock({}, ranks, ranks));
}

TEST(Standing, ArrivesAsItWasSent) {
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
}  // namespace fsdp
