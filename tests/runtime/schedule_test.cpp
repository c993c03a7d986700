// What is needed next, on integers.

#include "runtime/schedule.h"

#include <gtest/gtest.h>

namespace fsdp::runtime {
namespace {

using Ids = std::vector<GroupId>;

// Notes each group and returns the predictions; 0: none.
Ids note_all(ReadOrder& order, const Ids& groups) {
  order.start();
  Ids predictions;
  for (GroupId group : groups) predictions.push_back(order.note(group).value_or(0));
  return predictions;
}

// `groups` again and again in one pass.
Ids rounds_of(const Ids& groups, int64_t rounds) {
  Ids reads;
  for (int64_t i = 0; i < rounds; ++i) reads.insert(reads.end(), groups.begin(), groups.end());
  return reads;
}

// What is predicted in the last of some passes.
struct Passes {
  const char* says;
  std::vector<Ids> before;
  Ids reads, predictions;
};

void expect_predicted(const std::vector<Passes>& all) {
  for (const auto& passes : all) {
    ReadOrder order;
    for (const auto& reads : passes.before) note_all(order, reads);
    EXPECT_EQ(note_all(order, passes.reads), passes.predictions) << passes.says;
  }
}

TEST(ReadOrder, PredictsWhatFollowedInTheLastPass) {
  EXPECT_EQ(ReadOrder().note(1), std::nullopt) << "before start()";
  expect_predicted({{"the first pass", {}, {1, 2, 3}, {0, 0, 0}},
                    {"the same again", {{1, 2, 3}}, {1, 2, 3}, {2, 3, 0}},
                    {"a group that is not known", {{1, 2, 3}}, {1, 9, 2}, {2, 0, 3}},
                    {"it is known now", {{1, 2, 3}, {1, 9, 2}}, {1, 9, 2}, {9, 2, 0}},
                    {"passes that read nothing", {{1, 2}, {}, {}}, {1, 2}, {2, 0}}});
}

TEST(ReadOrder, PredictsAGroupThatIsReadSeveralTimes) {
  expect_predicted({{"between others", {{1, 2, 1, 3, 1}}, {1, 2, 1, 3, 1}, {2, 1, 3, 1, 0}},
                    {"again at once: once", {{1, 1, 2, 2, 2, 3}}, {1, 1, 2, 3, 3}, {2, 2, 3, 0, 0}}});
}

TEST(ReadOrder, FindsItsPlaceAgainWhenGroupsAreSkipped) {
  expect_predicted({{"2 and 3", {{1, 2, 3, 4, 5}}, {1, 4, 5}, {2, 5, 0}}});
}

TEST(ReadOrder, PredictsLaterRoundsOfOnePass) {
  const Ids round{1, 2, 3}, ring{1, 2, 3, 1}, twice{1, 2, 3, 2, 4};
  expect_predicted({
      {"in the first pass", {}, rounds_of(round, 3), {0, 0, 0, 0, 3, 1, 2, 3, 1}},
      {"in the next one", {rounds_of(round, 3)}, rounds_of(round, 2), {2, 3, 1, 2, 3, 1}},
      {"that begin and end with one group", {}, rounds_of(ring, 3), {0, 0, 0, 0, 0, 3, 1, 2, 2, 3, 1, 2}},
      {"one round after many", {rounds_of(round, 1000), round}, round, {2, 3, 0}},
  });
  ReadOrder order;
  const auto predictions = note_all(order, rounds_of(twice, 3));
  EXPECT_EQ(Ids(predictions.end() - 5, predictions.end()), Ids({2, 3, 2, 4, 1}));
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
