#include "round.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "attendance.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

const Member kFirst{.id = 0, .local_ranks = 2}, kSecond{.id = 1, .local_ranks = 1}, kThird{.id = 4, .local_ranks = 3};

TEST(Round, NumbersNodesInTheOrderOfTheirLaunchers) {
  const Round round{.attempt = 7, .failures = 2, .members = {kFirst, kThird}};
  EXPECT_EQ(round.node_of(0), 0);
  EXPECT_EQ(round.node_of(4), 1);
  EXPECT_EQ(round.node_of(1), std::nullopt);
  EXPECT_EQ(round.first_rank(1), 2);
  EXPECT_EQ(round.world_size(), 5);
}

TEST(Round, CanBeTold) {
  const Round round = Round::decode(Round{.attempt = 7, .failures = 2, .members = {kFirst, kThird}}.encode());
  EXPECT_EQ(round.attempt, 7);
  EXPECT_EQ(round.failures, 2);
  EXPECT_THAT(round.members, ElementsAre(kFirst, kThird));
  const AttemptEnd end = AttemptEnd::decode(AttemptEnd{.is_failure = false, .text = "1 more node joined"}.encode());
  EXPECT_FALSE(end.is_failure);
  EXPECT_EQ(end.text, "1 more node joined");
  EXPECT_TRUE(AttemptEnd::decode(AttemptEnd{.text = "rank 0 died"}.encode()).is_failure);
}

TEST(ChooseMembers, WaitsForTheLeastThenForTheLastCallAndTakesThoseThatCameFirst) {
  const NodeRange two_or_three{.least = 2, .most = 3}, one_or_two{.least = 1, .most = 2};
  EXPECT_EQ(choose_members({{kFirst}}, two_or_three, true), std::nullopt);
  EXPECT_EQ(choose_members({{kFirst}, {kSecond}}, two_or_three, false), std::nullopt);
  EXPECT_THAT(choose_members({{kFirst}, {kSecond}}, two_or_three, true), Optional(ElementsAre(kFirst, kSecond)));
  EXPECT_THAT(choose_members({{kThird}, {kFirst}, {kSecond}}, one_or_two, false),
              Optional(ElementsAre(kFirst, kSecond)));
  // The launcher waits for nodes that are still ending their ranks.
  EXPECT_EQ(choose_members({{kFirst}, {kSecond, /*is_ready=*/false}, {kThird}}, one_or_two, true), std::nullopt);
}

TEST(Attendance, CountsThoseThatHaveComeAndNeitherLeftNorFallenSilent) {
  const Round round{.attempt = 0, .failures = 0, .members = {kFirst, kSecond}};
  Attendance patient(std::chrono::seconds(1000));
  patient.note({{.local_ranks = 2}, {.local_ranks = 1}, {}, {.local_ranks = 9, .has_left = true}, {.local_ranks = 3}});
  const auto there = patient.candidates(round);
  ASSERT_EQ(there.size(), 3);
  EXPECT_EQ(there[1].member, kSecond);
  EXPECT_FALSE(there[1].is_ready);
  EXPECT_EQ(there[2].member, kThird);
  EXPECT_TRUE(there[2].is_ready);  // It did not take part.
  EXPECT_EQ(patient.loss_in(round), std::nullopt);
}

TEST(Attendance, NamesAMemberThatLeftByItsNodeAndOneThatIsSilent) {
  const Round round{.attempt = 0, .failures = 0, .members = {kFirst, kThird}};
  const std::vector<Sighting> left{{.local_ranks = 2}, {}, {}, {}, {.local_ranks = 3, .has_left = true}};
  Attendance patient(std::chrono::seconds(1000));
  patient.note(left);
  EXPECT_THAT(patient.loss_in(round), Optional(HasSubstr("node 1: its launcher has ended")));
  Attendance hasty(std::chrono::seconds(-1));
  hasty.note(left);
  EXPECT_THAT(hasty.loss_in(round), Optional(HasSubstr("node 0: its launcher has been silent")));
}

}  // namespace
}  // namespace fsdprun
