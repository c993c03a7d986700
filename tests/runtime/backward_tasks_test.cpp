// The backwards of a rank: whose turn it is, whose thread, what is in flight, which gradients are yet to come.

#include "runtime/backward_tasks.h"

#include <gtest/gtest.h>

#include "runtime/expectations.h"

namespace fsdp::runtime {
namespace {

TEST(Turn, ComesInTheReverseOrderOfFirstReadsBucketByBucketAndLastWithoutARead) {
  const std::set<Turn> turns{{false, 1, 10}, {false, 3, 30, 1}, {true, 0, 40},
                             {false, 2, 20}, {true, 0, 50},     {false, 3, 30, 0}};
  std::vector<std::pair<GroupId, size_t>> order;
  for (const auto& turn : turns) order.emplace_back(turn.group, turn.bucket);
  EXPECT_EQ(order, (std::vector<std::pair<GroupId, size_t>>{{30, 0}, {30, 1}, {20, 0}, {10, 0}, {50, 0}, {40, 0}}));
}

TEST(BackwardTasks, AreFoundUntilTheyAreClosed) {
  BackwardTasks tasks;
  EXPECT_EQ(tasks.find(3), nullptr);
  const auto task = tasks.open({.id = 3});
  EXPECT_EQ(tasks.find(3), task);
  EXPECT_TRUE(tasks.close(3));
  EXPECT_FALSE(tasks.close(3));
  EXPECT_TRUE(tasks.empty());
}

TEST(BackwardTasks, AreUnfinishedWhenTheyEndWithoutBeingClosed) {
  BackwardTasks tasks;
  auto runs = std::make_shared<int>();
  tasks.open({.id = 1, .runs = runs, .thread = std::this_thread::get_id()});
  EXPECT_FALSE(tasks.has_unfinished());
  runs.reset();
  EXPECT_TRUE(tasks.has_unfinished());
  tasks.clear();
  EXPECT_FALSE(tasks.has_unfinished());
}

TEST(BackwardTasks, RunOnAnotherThreadWhileTheyRun) {
  BackwardTasks tasks;
  auto runs = std::make_shared<int>();
  std::thread([&] { tasks.open({.id = 1, .runs = runs, .thread = std::this_thread::get_id()}); }).join();
  tasks.open({.id = 2, .runs = runs, .thread = std::this_thread::get_id()});
  EXPECT_TRUE(tasks.runs_on_another_thread(1));
  EXPECT_FALSE(tasks.runs_on_another_thread(2));
  EXPECT_FALSE(tasks.runs_on_another_thread(3));
  runs.reset();
  EXPECT_FALSE(tasks.runs_on_another_thread(1));
}

TEST(BackwardTasks, GiveTheOldestReductionWhenTwoAreInFlight) {
  BackwardTasks tasks;
  tasks.note_reducing(1);
  EXPECT_EQ(tasks.take_oldest_of_too_many(), std::nullopt);
  tasks.note_reducing(2);
  tasks.note_reducing(1);  // again: it is the youngest now
  EXPECT_EQ(tasks.take_oldest_of_too_many(), 2);
  EXPECT_EQ(tasks.take_oldest_of_too_many(), std::nullopt);
  tasks.note_reducing(3);
  tasks.forget_reducing(3);
  EXPECT_EQ(tasks.take_oldest_of_too_many(), std::nullopt);
}

using enum GradientSource;

Expectations expecting(const std::vector<GradientSource>& sources) {
  Expectations expectations;
  expectations.begin(sources.size());
  for (size_t slot = 0; slot < sources.size(); ++slot) expectations.expect(slot, sources[slot]);
  return expectations;
}

TEST(Expectations, OfNothingAreComplete) {
  auto begun_again = expecting({kTask, kInside});
  begun_again.begin(2);
  for (const auto& expectations : {Expectations(), expecting({}), expecting({kNone, kNone}), begun_again}) {
    EXPECT_TRUE(expectations.is_complete());
    EXPECT_FALSE(expectations.expects_any());
    EXPECT_FALSE(expectations.awaits_recomputation_only());
  }
}

TEST(Expectations, AreCompleteWhenEachSlotHasItsGradientHoweverOftenOthersCome) {
  auto expectations = expecting({kTask, kNone, kTask});
  for (int i = 0; i < 3; ++i) expectations.arrive(0, kTask);
  expectations.arrive(1, kTask);
  EXPECT_FALSE(expectations.is_complete());
  expectations.arrive(2, kTask);
  EXPECT_TRUE(expectations.is_complete());
  EXPECT_TRUE(expectations.expects_any()) << "the backward gave some";
}

TEST(Expectations, OfAForwardThatRunsAgainAreMetByABackwardInsideOnly) {
  auto expectations = expecting({kTask, kInside});
  EXPECT_FALSE(expectations.awaits_recomputation_only());
  expectations.arrive(1, kTask);
  expectations.arrive(0, kInside);
  EXPECT_FALSE(expectations.awaits_recomputation_only()) << "the outermost task has yet to give slot 0 its gradient";
  expectations.arrive(0, kTask);
  EXPECT_TRUE(expectations.awaits_recomputation_only());
  EXPECT_FALSE(expectations.is_complete());
  expectations.arrive(1, kInside);
  EXPECT_TRUE(expectations.is_complete());
  EXPECT_FALSE(expectations.awaits_recomputation_only());
}

}  // namespace
}  // namespace fsdp::runtime
