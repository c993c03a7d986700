// What is needed next, and what may be freed, on integers.

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

TEST(GroupsToFree, AreTheOldestUnprotectedOnes) {
  const std::vector<Resident> residents{{5, false}, {3, false}, {9, false}};
  EXPECT_EQ(groups_to_free(residents, 0), Ids({5, 3, 9}));
  EXPECT_EQ(groups_to_free(residents, 1), Ids({5, 3}));
  EXPECT_EQ(groups_to_free(residents, 3), Ids());
  EXPECT_EQ(groups_to_free(residents, 100), Ids());
}

TEST(GroupsToFree, NeverHaveAProtectedOne) {
  const std::vector<Resident> residents{{1, true}, {2, false}, {3, true}, {4, false}, {5, true}};
  EXPECT_EQ(groups_to_free(residents, 0), Ids({2, 4}));
  EXPECT_EQ(groups_to_free(residents, 1), Ids({2})) << "protected ones do not count as those that stay";
  EXPECT_EQ(groups_to_free(std::vector<Resident>{{1, true}}, 0), Ids());
  EXPECT_EQ(groups_to_free({}, 0), Ids());
}

}  // namespace
}  // namespace fsdp::runtime
