// Ranks that die or stay away, as the others see it. Times are bounds against hanging, not measurements.

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <thread>

#include "process/expect_end.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

int64_t reduce(const std::string& subject, int64_t own = 1) {
  const at::Tensor tensor = at::full({300'000}, own);
  default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {subject, {}})->wait();
  return tensor[0].item<int64_t>();
}

// A rank that sees another one die prints so.
void report_the_lost(const std::function<void()>& act) {
  try {
    act();
  } catch (const PeerLost& error) {
    std::cout << "PeerLost " << error.rank() << ": " << error.what_without_backtrace() << std::endl;
  }
}

// A child has its rank's connections too, and keeps them open.
void fork_a_child() {
  if (fork() != 0) return;
  alarm(60);
  while (true) pause();
}

PROCESS_CASE(reduce_until_a_rank_dies) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(std::stoi(std::getenv("TIMEOUT")))});
  reduce("blocks.2");
  if (rank() == std::stoi(std::getenv("FORKS"))) fork_a_child();
  report_the_lost([] {
    for (int step = 0;; ++step) {
      reduce("blocks.3");
      if (step == 3) std::cout << "running" << std::endl;
    }
  });
}

struct Fate {
  const char* name;
  int world, victim, signal;
  bool has_a_child;
};

class CommDeath : public testing::TestWithParam<Fate> {};

TEST_P(CommDeath, IsNamedByEverySurvivor) {
  const auto& fate = GetParam();
  ProcessRanks ranks("reduce_until_a_rank_dies",
                     {.world_size = fate.world,
                      .limit = std::chrono::seconds(50),
                      .environment = {{"FORKS", std::to_string(fate.has_a_child ? fate.victim : -1)},
                                      // Only silence is found by the timeout.
                                      {"TIMEOUT", fate.signal == SIGSTOP ? "3" : "120"}}});
  for (int rank = 0; rank < fate.world; ++rank)
    ASSERT_TRUE(ranks.wait_for_output(rank, "running")) << ranks.wait(rank).output;
  ranks.kill(fate.victim, fate.signal);
  for (int rank = 0; rank < fate.world; ++rank) {
    if (rank == fate.victim) continue;
    expect_end(ranks, rank, 0, {c10::str("PeerLost ", fate.victim, ":"), "all_reduce(sum) of 'blocks.3'"});
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommDeath,
                         testing::Values(Fate{"TheFirst", 3, 0, SIGKILL, false}, Fate{"TheLast", 3, 2, SIGKILL, false},
                                         Fate{"WithAChild", 3, 1, SIGKILL, true}, Fate{"Silent", 2, 1, SIGSTOP, false}),
                         [](const auto& fate) { return fate.param.name; });

PROCESS_CASE(idle_while_a_rank_dies) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(30)});
  const auto process_of_rank_1 = static_cast<pid_t>(reduce("blocks.3", rank() == 1 ? getpid() : 0));
  std::cout << "running" << std::endl;
  // Rank 1 waits for what rank 2 never sends; rank 0 computes until rank 1 has ended, and learns of the death of rank 2
  // when it comes back.
  if (rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(60));
  while (rank() == 0 && kill(process_of_rank_1, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  report_the_lost([] {
    const at::Tensor tensor = at::empty({1});
    if (rank() == 1) default_process_group()->communicator().recv(tensor, 2, {"never sent", {}})->wait();
    reduce("blocks.4");
  });
}

TEST(CommDeathOfAnother, IsNamedThoughASurvivorHasExitedFirst) {
  ProcessRanks ranks("idle_while_a_rank_dies", {.world_size = 3});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "running")) << ranks.wait(rank).output;
  ranks.kill(2);
  for (const int rank : {1, 0}) expect_end(ranks, rank, 0, {"PeerLost 2:"});
}

PROCESS_CASE(fork_and_leave) {
  init_process_group({.backend = "shm", .timeout = std::chrono::seconds(120)});
  reduce("blocks.2");
  if (rank() == 1) {
    fork_a_child();
    destroy_process_group();
    return;
  }
  report_the_lost([] { reduce("blocks.3"); });
}

// Gloo does not say goodbye: its connections end with the child.
TEST(ARankThatLeft, IsNoticedThoughAChildThatItForkedLivesOn) {
  ProcessRanks ranks("fork_and_leave", {.world_size = 2, .limit = std::chrono::seconds(40)});
  expect_end(ranks, 0, 0, {"PeerLost 1:"});
}

PROCESS_CASE(fork_a_child_that_exits) {
  init_process_group({.backend = "shm", .timeout = std::chrono::seconds(30)});
  const pid_t child = fork();
  if (child == 0) std::exit(0);  // Runs static destructors and what was registered to run at exit.
  TORCH_CHECK(waitpid(child, nullptr, 0) == child);
  reduce("blocks.3");
}

// Threads that Gloo has are missing in a child, which cannot exit.
TEST(AChildOfARank, ThatExitsDisturbsNobody) {
  ProcessRanks ranks("fork_a_child_that_exits", {.world_size = 2});
  expect_ends(ranks, 2, 0);
}

}  // namespace
}  // namespace fsdp::test
