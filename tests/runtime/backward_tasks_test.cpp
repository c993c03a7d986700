// The backwards of a rank: whose turn it is, whose thread, what is in flight.

#include "runtime/backward_tasks.h"

#include <gtest/gtest.h>

namespace fsdp::runtime {
namespace {

TEST(Turn, ComesInTheReverseOrderOfFirstReadsAndLastWithoutOne) {
  const std::set<Turn> turns{{false, 1, 10}, {false, 3, 30}, {true, 0, 40}, {false, 2, 20}, {true, 0, 50}};
  std::vector<GroupId> groups;
  for (const auto& turn : turns) groups.push_back(turn.group);
  EXPECT_EQ(groups, std::vector<GroupId>({30, 20, 10, 50, 40}));
}

TEST(Turn, OfBucketsComesGroupByGroupAndInTheirOrder) {
  const std::set<Turn> turns{{false, 1, 10, 0}, {false, 2, 20, 1}, {false, 2, 20, 0}, {false, 1, 10, 1}};
  std::vector<std::pair<GroupId, size_t>> order;
  for (const auto& turn : turns) order.emplace_back(turn.group, turn.bucket);
  EXPECT_EQ(order, (std::vector<std::pair<GroupId, size_t>>{{20, 0}, {20, 1}, {10, 0}, {10, 1}}));
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

}  // namespace
}  // namespace fsdp::runtime
