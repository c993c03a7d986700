// Ranks that die or stay away, as the others see it. Times are bounds against hanging, not measurements.

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <thread>

#include "support/backend.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void reduce(const std::string& subject) {
  const at::Tensor tensor = at::ones({300'000});
  default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {subject, {}})->wait();
}

// What a rank that saw another one die prints.
void report(const PeerLost& error) {
  std::cout << "PeerLost " << error.rank() << ": " << error.what_without_backtrace() << std::endl;
}

PROCESS_CASE(reduce_until_a_rank_dies) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(30)});
  try {
    for (int step = 0;; ++step) {
      reduce("blocks.3");
      if (step == 3) std::cout << "running" << std::endl;
    }
  } catch (const PeerLost& error) {
    report(error);
  }
}

class Death : public testing::TestWithParam<int> {};

TEST_P(Death, IsNamedByEverySurvivor) {
  const int victim = GetParam();
  ProcessRanks ranks("reduce_until_a_rank_dies", {.world_size = 3});
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.wait_for_output(rank, "running")) << ranks.wait(rank).output;
  }
  const auto killed = std::chrono::steady_clock::now();
  ranks.kill(victim);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    const auto& result = ranks.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr(c10::str("PeerLost ", victim, ":")), HasSubstr("all_reduce(sum) of 'blocks.3'")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(25));
}

INSTANTIATE_TEST_SUITE_P(Victim, Death, testing::Values(0, 1, 2));

PROCESS_CASE(idle_while_a_rank_dies) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(30)});
  reduce("blocks.3");
  std::cout << "running" << std::endl;
  // Rank 1 reduces with nobody; rank 0 computes for long and learns of the death when it comes back.
  if (rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(60));
  if (rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(9));
  try {
    reduce("blocks.4");
  } catch (const PeerLost& error) {
    report(error);
  }
}

TEST(DeathOfAnother, IsNamedThoughASurvivorHasExitedFirst) {
  ProcessRanks ranks("idle_while_a_rank_dies", {.world_size = 3});
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.wait_for_output(rank, "running")) << ranks.wait(rank).output;
  }
  ranks.kill(2);
  for (const int rank : {1, 0}) {
    EXPECT_EQ(ranks.wait(rank).exit_code, 0) << ranks.wait(rank).output;
    EXPECT_THAT(ranks.wait(rank).output, HasSubstr("PeerLost 2:"));
  }
}

// A child that a rank forked has the rank's connections too, and keeps them open.
PROCESS_CASE(fork_and_reduce_until_a_rank_dies) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(120)});
  reduce("blocks.2");
  if (rank() == 1 && fork() == 0) {
    alarm(60);
    while (true) pause();
  }
  try {
    for (int step = 0;; ++step) {
      reduce("blocks.3");
      if (step == 3) std::cout << "running" << std::endl;
    }
  } catch (const PeerLost& error) {
    report(error);
  }
}

TEST(DeathOfAnother, IsNoticedThoughAChildThatItForkedLivesOn) {
  ProcessRanks ranks("fork_and_reduce_until_a_rank_dies", {.world_size = 3, .limit = std::chrono::seconds(40)});
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.wait_for_output(rank, "running")) << ranks.wait(rank).output;
  }
  ranks.kill(1);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ranks.wait(rank).exit_code, 0) << ranks.wait(rank).output;
    EXPECT_THAT(ranks.wait(rank).output, HasSubstr("PeerLost 1:"));
  }
}

PROCESS_CASE(fork_and_leave) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(120)});
  reduce("blocks.2");
  if (rank() == 1) {
    if (fork() == 0) {
      alarm(60);
      while (true) pause();
    }
    destroy_process_group();
    return;
  }
  try {
    reduce("blocks.3");
  } catch (const PeerLost& error) {
    report(error);
  }
}

TEST(ARankThatLeft, IsNoticedThoughAChildThatItForkedLivesOn) {
  if (test_backend() == "gloo") GTEST_SKIP() << "Gloo does not say goodbye: its connections end with the child";
  ProcessRanks ranks("fork_and_leave", {.world_size = 2, .limit = std::chrono::seconds(40)});
  EXPECT_EQ(ranks.wait(0).exit_code, 0) << ranks.wait(0).output;
  EXPECT_THAT(ranks.wait(0).output, HasSubstr("PeerLost 1:"));
}

PROCESS_CASE(fork_a_child_that_exits) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(30)});
  const pid_t child = fork();
  if (child == 0) std::exit(0);  // Runs static destructors and what was registered to run at exit.
  TORCH_CHECK(waitpid(child, nullptr, 0) == child);
  reduce("blocks.3");
}

TEST(AChildOfARank, ThatExitsDisturbsNobody) {
  if (test_backend() == "gloo") GTEST_SKIP() << "threads that Gloo has are missing in a child, which cannot exit";
  ProcessRanks ranks("fork_a_child_that_exits", {.world_size = 2});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank).exit_code, 0) << ranks.wait(rank).output;
}

PROCESS_CASE(reduce_on_one_rank_only) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(2)});
  reduce("blocks.0");
  if (rank() == 1) {
    try {
      reduce("blocks.1");
    } catch (const Mismatch& error) {
      std::cout << "Mismatch: " << error.what_without_backtrace() << std::endl;
    }
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(5));
  }
}

TEST(AnOperationOnOneRankOnly, TimesOutAndReportsEveryRanksLastOperation) {
  ProcessRanks ranks("reduce_on_one_rank_only", {.world_size = 2});
  EXPECT_EQ(ranks.wait(0).exit_code, 0) << ranks.wait(0).output;
  EXPECT_EQ(ranks.wait(1).exit_code, 0) << ranks.wait(1).output;
  EXPECT_THAT(ranks.wait(1).output, AllOf(HasSubstr("Mismatch: [fsdp rank 1/2] all_reduce(sum) of 'blocks.1' (#3)"),
                                          HasSubstr("timed out: rank 0 is alive but did not join"),
                                          HasSubstr("rank 0: all_reduce(sum) of 'blocks.0' (#2), done")));
}

PROCESS_CASE(reduce_until_a_rank_stops) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(3)});
  try {
    for (int step = 0;; ++step) {
      reduce("blocks.3");
      if (step == 3) std::cout << "running" << std::endl;
    }
  } catch (const PeerLost& error) {
    report(error);
  }
}

TEST(ASilentRank, IsLostAfterTheTimeout) {
  ProcessRanks ranks("reduce_until_a_rank_stops", {.world_size = 2});
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(ranks.wait_for_output(rank, "running")) << ranks.wait(rank).output;
  }
  ranks.kill(1, SIGSTOP);
  EXPECT_EQ(ranks.wait(0).exit_code, 0) << ranks.wait(0).output;
  EXPECT_THAT(ranks.wait(0).output, HasSubstr("PeerLost 1:"));
}

}  // namespace
}  // namespace fsdp::test
