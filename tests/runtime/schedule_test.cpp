// Tests of the decisions about which group is needed next, which gradients are still missing and which unsharded groups
// may be freed. Groups are plain integers here.

#include "runtime/schedule.h"

#include <gmock/gmock.h>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "support/small_net.h"

namespace fsdp::runtime {
namespace {

using test::run_thread_ranks;

using Ids = std::vector<GroupId>;

// Notes a read of each group, and returns the predicted next groups. 0 means that none is predicted.
Ids note_all(ReadOrder& order, const Ids& groups) {
  order.start();
  Ids predictions;
  for (GroupId group : groups) predictions.push_back(order.note(group).value_or(0));
  return predictions;
}

// Returns reads of `groups`, repeated `rounds` times in one pass.
Ids rounds_of(const Ids& groups, int64_t rounds) {
  Ids reads;
  for (int64_t i = 0; i < rounds; ++i) reads.insert(reads.end(), groups.begin(), groups.end());
  return reads;
}

// A case: several passes, then one more, and the predictions in that last one.
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
                    {"passes that read nothing", {{1, 2}, {}, {}}, {1, 2}, {2, 0}},
                    {"several times, between others", {{1, 2, 1, 3, 1}}, {1, 2, 1, 3, 1}, {2, 1, 3, 1, 0}},
                    {"several times at once count once", {{1, 1, 2, 2, 2, 3}}, {1, 1, 2, 3, 3}, {2, 2, 3, 0, 0}},
                    {"2 and 3 are skipped", {{1, 2, 3, 4, 5}}, {1, 4, 5}, {2, 5, 0}}});
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
  EXPECT_EQ(order.ahead(2), Ids({2, 3}));
  EXPECT_EQ(order.ahead(SIZE_MAX, [](GroupId group) { return group != 3; }), Ids({2}))
      << "none after what does not fit";
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

TEST(OrderedBucket, ComesInTheReverseOrderOfFirstReadsBucketByBucketAndLastWithoutARead) {
  const std::set<OrderedBucket> buckets{{false, 1, 10}, {false, 3, 30, 1}, {true, 0, 40},
                                        {false, 2, 20}, {true, 0, 50},     {false, 3, 30, 0}};
  std::vector<std::pair<GroupId, size_t>> order;
  for (const auto& next : buckets) order.emplace_back(next.group, next.bucket);
  EXPECT_EQ(order, (std::vector<std::pair<GroupId, size_t>>{{30, 0}, {30, 1}, {20, 0}, {10, 0}, {50, 0}, {40, 0}}));
}

TEST(ABucket, IsCompleteWhenEachSlotHasItsGradientFromWhereItWasExpected) {
  torch::nn::Linear linear(2, 2);
  run_thread_ranks(1, [&](int) {
    const auto group = param_groups(fully_shard(*linear)).front();
    std::lock_guard lock(group->rank_state().mutex);
    const auto is_weight = [](const ParamSlot& slot) { return slot.name() == "weight"; };
    const auto weight = static_cast<size_t>(is_weight(group->slots()[1])), bias = 1 - weight;
    const auto arrive = [&](size_t slot, bool from_inside) {
      group->add_gradient(slot, torch::ones(group->slots()[slot].sizes()), from_inside);
    };
    const auto expect_missing = [&](size_t from_task, size_t from_inside) {
      const auto& bucket = group->buckets().front();
      EXPECT_EQ(bucket.missing, from_task);
      EXPECT_EQ(bucket.missing_inside, from_inside);
      EXPECT_EQ(bucket.is_complete(), from_task + from_inside == 0);
    };
    const auto begin = [&](bool (*expects)(const ParamSlot&), bool may_recompute) {
      group->reset();
      group->slots()[bias].was_read_unrecorded = true;
      group->enter_backward(1, expects, may_recompute);
    };
    begin([](const ParamSlot&) { return true; }, true);
    expect_missing(2, 0);
    for (int i = 0; i < 3; ++i) arrive(weight, false);  // counts once
    expect_missing(1, 0);
    arrive(bias, true);  // from a forward that ran again
    expect_missing(1, 0);
    arrive(bias, false);
    expect_missing(0, 0);
    EXPECT_TRUE(group->expects_gradients()) << "the backward gave some";

    begin(is_weight, true);  // the bias was read without recording
    expect_missing(1, 1);
    arrive(bias, false);
    arrive(weight, true);
    expect_missing(1, 1);
    arrive(weight, false);
    expect_missing(0, 1);
    arrive(bias, true);
    expect_missing(0, 0);

    begin(is_weight, false);  // autograd::grad recomputes nothing
    expect_missing(1, 0);
    begin([](const ParamSlot&) { return false; }, false);
    expect_missing(0, 0);
    EXPECT_FALSE(group->expects_gradients());
    group->reset();
  });
}

GroupTree tree_of(const std::map<GroupId, Ids>& parents) {
  GroupTree tree;
  for (const auto& [group, around] : parents) {
    tree.add(group);
    for (GroupId parent : around) tree.add_parent(group, parent);
  }
  return tree;
}

TEST(GroupTree, NestsAGroupInItselfAndInThoseAroundIt) {
  // Group 1 contains 2 and 3, and group 2 contains 4 and 5. Group 6 is a model of its own.
  const auto tree = tree_of({{1, {}}, {2, {1}}, {3, {1}}, {4, {2}}, {5, {2}}, {6, {}}});
  for (GroupId group : {1, 2, 3, 4, 5, 6}) EXPECT_TRUE(tree.are_nested(group, group)) << group;
  for (GroupId group : {2, 3, 4, 5}) {
    EXPECT_TRUE(tree.contains(1, group) && !tree.contains(group, 1)) << group;
    EXPECT_TRUE(tree.are_nested(1, group) && tree.are_nested(group, 1)) << group;
  }
  EXPECT_TRUE(tree.are_nested(4, 2) && tree.are_nested(2, 5));
  EXPECT_FALSE(tree.are_nested(2, 3) || tree.are_nested(4, 5) || tree.are_nested(4, 3));
  for (GroupId group : {1, 2, 3, 4, 5}) EXPECT_FALSE(tree.are_nested(6, group)) << group;
}

TEST(GroupTree, NestsAGroupInBothModelsThatHaveItAndTakesOneWhoseParentIsGoneForAnOutermostOne) {
  // Group 3 contains 4 and is in 1 and 2. Group 2 is in 5. The parent of 6 and 7 is removed.
  auto tree = tree_of({{1, {}}, {2, {5}}, {3, {1, 2}}, {4, {3}}, {5, {}}, {6, {9}}, {7, {9}}, {8, {6}}, {9, {1}}});
  tree.remove(9);
  for (GroupId around : {1, 2, 5})
    for (GroupId shared : {3, 4})
      EXPECT_TRUE(tree.are_nested(around, shared) && tree.are_nested(shared, around)) << around << ' ' << shared;
  EXPECT_FALSE(tree.are_nested(1, 2));
  EXPECT_TRUE(tree.are_nested(6, 8));
  EXPECT_FALSE(tree.are_nested(6, 7) || tree.are_nested(1, 6));
}

}  // namespace
}  // namespace fsdp::runtime
