// Which groups lie inside one another, on integers.

#include "runtime/kinship.h"

#include <gtest/gtest.h>

namespace fsdp::runtime {
namespace {

TEST(Kinship, RelatesAGroupToItselfToThoseAroundItAndToThoseInsideIt) {
  // 1 has 2 and 3; 2 has 4 and 5; 6 is a model of its own.
  const Kinship kinship({{1, {}}, {2, {1}}, {3, {1}}, {4, {2}}, {5, {2}}, {6, {}}});
  for (GroupId group : {1, 2, 3, 4, 5, 6}) EXPECT_TRUE(kinship.are_related(group, group)) << group;
  for (GroupId group : {2, 3, 4, 5}) EXPECT_TRUE(kinship.are_related(1, group) && kinship.are_related(group, 1));
  EXPECT_TRUE(kinship.are_related(4, 2) && kinship.are_related(2, 5));
  EXPECT_FALSE(kinship.are_related(2, 3) || kinship.are_related(4, 5) || kinship.are_related(4, 3));
  for (GroupId group : {1, 2, 3, 4, 5}) EXPECT_FALSE(kinship.are_related(6, group)) << group;
}

TEST(Kinship, RelatesAGroupInTwoModelsToBoth) {
  // 3, with 4 inside it, is in 1 and in 2, which is in 5.
  const Kinship kinship({{1, {}}, {2, {5}}, {3, {1, 2}}, {4, {3}}, {5, {}}});
  for (GroupId around : {1, 2, 5})
    for (GroupId shared : {3, 4}) {
      EXPECT_TRUE(kinship.are_related(around, shared)) << around << ' ' << shared;
      EXPECT_TRUE(kinship.are_related(shared, around)) << around << ' ' << shared;
    }
  EXPECT_FALSE(kinship.are_related(1, 2));
}

TEST(Kinship, TakesAGroupWhoseParentIsGoneForAnOutermostOne) {
  const Kinship kinship({{2, {1}}, {3, {2}}, {4, {1}}});
  EXPECT_TRUE(kinship.are_related(2, 3));
  EXPECT_FALSE(kinship.are_related(2, 4));
}

TEST(Kinship, OfAChainKnowsEveryPair) {
  constexpr GroupId kDepth = 100'000;
  Parents parents{{1, {}}};
  for (GroupId group = 2; group <= kDepth; ++group) parents[group] = {group - 1};
  const Kinship kinship(std::move(parents));
  EXPECT_TRUE(kinship.are_related(1, kDepth) && kinship.are_related(kDepth, kDepth / 2));
}

}  // namespace
}  // namespace fsdp::runtime
