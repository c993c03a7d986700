// Which groups lie inside one another, and which whole ones may be freed for one that is read, on integers.

#include "runtime/residents.h"

#include <gmock/gmock.h>

namespace fsdp::runtime {
namespace {

using Ids = std::vector<GroupId>;

// 1 has 2 and 3; 2 has 4 and 5; 6 is a model of its own.
Kinship family() { return Kinship({{1, {}}, {2, {1}}, {3, {1}}, {4, {2}}, {5, {2}}, {6, {}}}); }

TEST(Kinship, RelatesAGroupToItselfToThoseAroundItAndToThoseInsideIt) {
  const auto kinship = family();
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

void note_reads(Residents& residents, const Kinship& kinship, const Ids& groups) {
  for (GroupId group : groups) residents.note(group, kinship.span_of(group));
}

TEST(Residents, AreApartUnlessOneIsInsideTheOther) {
  const auto kinship = family();
  Residents residents;
  note_reads(residents, kinship, {1, 2, 3, 4, 5, 6});
  const auto apart_from = [&](GroupId group) { return residents.apart_from(kinship.span_of(group)); };
  EXPECT_EQ(apart_from(1), Ids({6}));
  EXPECT_EQ(apart_from(2), Ids({3, 6}));
  EXPECT_EQ(apart_from(3), Ids({2, 4, 5, 6}));
  EXPECT_EQ(apart_from(4), Ids({3, 5, 6}));
  EXPECT_EQ(apart_from(6), Ids({1, 2, 3, 4, 5}));
}

TEST(Residents, LieWithinTheGroupsAroundThemUnlessTheyAreKept) {
  const auto kinship = family();
  Residents residents;
  note_reads(residents, kinship, {2, 3, 4, 5, 6});
  residents.keep(5);
  const auto within = [&](GroupId group) { return residents.within(kinship.span_of(group)); };
  EXPECT_THAT(within(1), testing::UnorderedElementsAre(2, 3, 4));
  EXPECT_THAT(within(2), testing::UnorderedElementsAre(2, 4));
  EXPECT_EQ(within(5), Ids());
  EXPECT_EQ(within(6), Ids({6}));
}

TEST(Residents, ComeInTheOrderInWhichTheyWereReadLast) {
  const auto kinship = family();
  Residents residents;
  note_reads(residents, kinship, {5, 4, 2, 4, 3});
  EXPECT_EQ(residents.apart_from(kinship.span_of(6)), Ids({5, 2, 4, 3}));
  residents.forget(2);
  residents.forget(2);
  EXPECT_EQ(residents.apart_from(kinship.span_of(6)), Ids({5, 4, 3}));
  note_reads(residents, kinship, {2});
  EXPECT_EQ(residents.apart_from(kinship.span_of(6)), Ids({5, 4, 3, 2}));
}

TEST(Residents, ThatAreKeptAreLeftOutUntilTheyAreReconsideredOrForgotten) {
  const auto kinship = family();
  Residents residents;
  note_reads(residents, kinship, {3, 4, 5});
  residents.keep(3);
  residents.keep(4);
  note_reads(residents, kinship, {3});
  residents.move(kinship);
  EXPECT_EQ(residents.apart_from(kinship.span_of(6)), Ids({5}));
  residents.reconsider(3);
  residents.reconsider(1);  // is not in memory
  EXPECT_EQ(residents.apart_from(kinship.span_of(6)), Ids({5, 3}));
  residents.forget(4);
  note_reads(residents, kinship, {4});
  EXPECT_EQ(residents.apart_from(kinship.span_of(6)), Ids({5, 3, 4}));
}

TEST(Residents, MoveWithTheModulesAroundThem) {
  Residents residents;
  note_reads(residents, Kinship({{1, {}}, {2, {}}, {3, {}}}), {1, 2, 3});
  const Kinship kinship({{1, {}}, {2, {}}, {3, {1}}});
  residents.move(kinship);
  EXPECT_EQ(residents.apart_from(kinship.span_of(3)), Ids({2}));
  EXPECT_EQ(residents.apart_from(kinship.span_of(2)), Ids({1, 3}));
}

// Each looks at none of the others, or this would take minutes.
TEST(Residents, OfManyInAChainOrManyThatAreKeptNoneIsLookedAt) {
  constexpr GroupId kMany = 100'000;
  for (const bool is_chain : {true, false}) {
    Parents parents{{1, {}}};
    for (GroupId group = 2; group <= kMany; ++group)
      parents[group] = is_chain ? std::vector{group - 1} : std::vector<GroupId>();
    const Kinship kinship(std::move(parents));
    EXPECT_EQ(kinship.are_related(1, kMany) && kinship.are_related(kMany, kMany / 2), is_chain);
    Residents residents;
    for (GroupId group = 1; group <= kMany; ++group) {
      ASSERT_EQ(residents.apart_from(kinship.span_of(group)), Ids()) << group;
      residents.note(group, kinship.span_of(group));
      if (!is_chain) residents.keep(group);
    }
  }
}

}  // namespace
}  // namespace fsdp::runtime
