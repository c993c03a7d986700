// What is needed next, on integers.

#include "runtime/schedule.h"

#include <gtest/gtest.h>

namespace fsdp::runtime {
namespace {

using Ids = std::vector<GroupId>;
constexpr std::nullopt_t kUnknown = std::nullopt;

// Notes each group and returns the predictions; 0: none.
Ids note_all(ReadOrder& order, const Ids& groups) {
  order.start();
  Ids predictions;
  for (GroupId group : groups) predictions.push_back(order.note(group).value_or(0));
  return predictions;
}

TEST(ReadOrder, PredictsNothingInTheFirstPass) {
  ReadOrder order;
  EXPECT_EQ(order.note(1), kUnknown) << "before start()";
  EXPECT_EQ(note_all(order, {1, 2, 3}), Ids({0, 0, 0}));
}

TEST(ReadOrder, PredictsWhatFollowedInTheLastPass) {
  ReadOrder order;
  note_all(order, {1, 2, 3});
  EXPECT_EQ(note_all(order, {1, 2, 3}), Ids({2, 3, 0}));
}

TEST(ReadOrder, SaysWhatFollowedUpToThePassesEndEachGroupOnce) {
  ReadOrder order;
  EXPECT_EQ(order.ahead(), Ids());
  note_all(order, {1, 2, 3, 2, 4});
  EXPECT_EQ(order.ahead(), Ids()) << "in the first pass";
  note_all(order, {1});
  EXPECT_EQ(order.ahead(), Ids({2, 3, 4}));
  order.note(2);
  EXPECT_EQ(order.ahead(), Ids({3, 4})) << "without the group itself";
  order.note(3);
  EXPECT_EQ(order.ahead(), Ids({2, 4}));
}

TEST(ReadOrder, TakesRepeatedReadsOfOneGroupAsOne) {
  ReadOrder order;
  note_all(order, {1, 1, 2, 2, 2, 3});
  EXPECT_EQ(note_all(order, {1, 1, 2, 3, 3}), Ids({2, 2, 3, 0, 0}));
}

TEST(ReadOrder, PredictsAGroupThatIsReadSeveralTimes) {
  ReadOrder order;
  note_all(order, {1, 2, 1, 3, 1});
  EXPECT_EQ(note_all(order, {1, 2, 1, 3, 1}), Ids({2, 1, 3, 1, 0}));
}

TEST(ReadOrder, FindsItsPlaceAgainWhenGroupsAreSkipped) {
  ReadOrder order;
  note_all(order, {1, 2, 3, 4, 5});
  EXPECT_EQ(note_all(order, {1, 4, 5}), Ids({2, 5, 0}));
}

TEST(ReadOrder, PassesOverAGroupThatItDoesNotKnow) {
  ReadOrder order;
  note_all(order, {1, 2, 3});
  EXPECT_EQ(note_all(order, {1, 9, 2}), Ids({2, 0, 3}));
  EXPECT_EQ(note_all(order, {1, 9, 2}), Ids({9, 2, 0}));
}

TEST(ReadOrder, KeepsItsPredictionThroughAPassThatReadNothing) {
  ReadOrder order;
  note_all(order, {1, 2});
  note_all(order, {});
  note_all(order, {});
  EXPECT_EQ(note_all(order, {1, 2}), Ids({2, 0}));
}

// `groups` again and again in one pass.
Ids rounds_of(const Ids& groups, int64_t rounds) {
  Ids reads;
  for (int64_t i = 0; i < rounds; ++i) reads.insert(reads.end(), groups.begin(), groups.end());
  return reads;
}

TEST(ReadOrder, PredictsLaterRoundsOfOnePass) {
  ReadOrder order;
  EXPECT_EQ(note_all(order, rounds_of({1, 2, 3}, 3)), Ids({0, 0, 0, 0, 3, 1, 2, 3, 1}));
  EXPECT_EQ(note_all(order, rounds_of({1, 2, 3}, 2)), Ids({2, 3, 1, 2, 3, 1}));
}

TEST(ReadOrder, PredictsLaterRoundsThatBeginAndEndWithOneGroup) {
  ReadOrder order;
  EXPECT_EQ(note_all(order, rounds_of({1, 2, 3, 1}, 3)), Ids({0, 0, 0, 0, 0, 3, 1, 2, 2, 3, 1, 2}));
}

TEST(ReadOrder, PredictsLaterRoundsInWhichAGroupIsReadSeveralTimes) {
  ReadOrder order;
  auto predictions = note_all(order, rounds_of({1, 2, 3, 2, 4}, 3));
  EXPECT_EQ(Ids(predictions.end() - 5, predictions.end()), Ids({2, 3, 2, 4, 1}));
}

TEST(ReadOrder, PredictsAPassOfOneRoundAfterAPassOfMany) {
  ReadOrder order;
  note_all(order, rounds_of({1, 2, 3}, 1000));
  note_all(order, {1, 2, 3});
  EXPECT_EQ(note_all(order, {1, 2, 3}), Ids({2, 3, 0}));
}

TEST(ReadOrder, RemembersABoundedNumberOfReads) {
  ReadOrder order;
  const Ids round{1, 2, 3, 4};
  note_all(order, rounds_of(round, 1000));
  EXPECT_LE(order.size(), 100);
  auto predictions = note_all(order, rounds_of(round, 1000));
  EXPECT_LE(order.size(), 100);
  EXPECT_EQ(Ids(predictions.end() - 4, predictions.end()), Ids({2, 3, 4, 1}));
  for (int pass = 0; pass < 1000; ++pass) note_all(order, round);
  EXPECT_LE(order.size(), 100);
}

}  // namespace
}  // namespace fsdp::runtime
