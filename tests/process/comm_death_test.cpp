// Tests of the other ranks' errors when one dies, leaves or stays away. Times only bound hangs.

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <numeric>
#include <thread>

#include "comm/core/fault_point.h"
#include "process/ranks.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

int64_t reduce(const std::string& subject, int64_t own = 1) {
  const at::Tensor tensor = at::full({300'000}, own);
  default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {subject, {}})->wait();
  return tensor[0].item<int64_t>();
}

// Runs `act`, and prints which rank it finds lost.
void report_the_lost(const std::function<void()>& act) {
  try {
    act();
  } catch (const PeerLost& error) {
    std::cout << "PeerLost " << error.rank() << ": " << error.what_without_backtrace() << std::endl;
  }
}

// The child inherits its rank's connections, and keeps them open.
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
  std::vector<int> all(static_cast<size_t>(fate.world));
  std::iota(all.begin(), all.end(), 0);
  auto ranks = start_ranks("reduce_until_a_rank_dies", fate.world,
                           {{"FORKS", std::to_string(fate.has_a_child ? fate.victim : -1)},
                            // Only the timeout finds a silent rank and, over Gloo, a rank whose child lives on.
                            {"TIMEOUT", fate.signal == SIGSTOP || fate.has_a_child ? "3" : "120"}});
  wait_for_output(ranks, all, "running");
  ranks.kill(fate.victim, fate.signal);
  for (int rank = 0; rank < fate.world; ++rank)
    if (rank != fate.victim)
      expect_end(ranks, rank, 0, {str_cat("PeerLost ", fate.victim, ":"), "all_reduce(sum) of 'blocks.3'"});
}

// CommDeathInTraining covers more deaths of ranks without a child.
INSTANTIATE_TEST_SUITE_P(Ranks, CommDeath,
                         testing::Values(Fate{"TheFirst", 3, 0, SIGKILL, false},
                                         Fate{"WithAChild", 3, 1, SIGKILL, true}, Fate{"Silent", 2, 1, SIGSTOP, false}),
                         [](const auto& fate) { return fate.param.name; });

PROCESS_CASE(idle_while_a_rank_dies) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(30)});
  const auto process_of_rank_1 = static_cast<pid_t>(reduce("blocks.3", rank() == 1 ? getpid() : 0));
  std::cout << "running" << std::endl;
  // Rank 1 waits for a message that rank 2 never sends. Rank 0 computes until rank 1 has ended, and learns of rank 2's
  // death at its next operation.
  if (rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(60));
  while (rank() == 0 && kill(process_of_rank_1, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  report_the_lost([] {
    const at::Tensor tensor = at::empty({1});
    if (rank() == 1) default_process_group()->communicator().recv(tensor, 2, {"never sent", {}})->wait();
    reduce("blocks.4");
  });
}

TEST(CommDeathOfAnother, IsNamedThoughASurvivorHasExitedFirst) {
  auto ranks = start_ranks("idle_while_a_rank_dies", 3);
  wait_for_output(ranks, {0, 1, 2}, "running");
  ranks.kill(2);
  for (const int rank : {1, 0}) expect_end(ranks, rank, 0, {"PeerLost 2:"});
}

// Rank 1 dies when rank 0 looks for it in the memory of their host. Rank 2, on another host, is already connecting. It
// can learn of the death only from the store, which ends with rank 0's process.
PROCESS_CASE(join_while_a_rank_dies) {
  static const int rank = std::stoi(std::getenv("RANK"));
  setenv("FSDP_HOST", rank < 2 ? "first" : "second", /*overwrite=*/1);
  on_fault_point = [](const char* place) {
    if (rank == 1 && place == std::string_view("joined")) raise(SIGKILL);
  };
  report_the_lost([] { init_process_group({.backend = "hierarchical", .timeout = std::chrono::seconds(5)}); });
}

TEST(CommDeathInJoining, IsNamedByRanksOfOtherHosts) {
  auto ranks = start_ranks("join_while_a_rank_dies", 3);
  for (const int rank : {0, 2}) expect_end(ranks, rank, 0, {"PeerLost 1:"});
}

// The ranks use shared memory. A child of a rank over Gloo lacks Gloo's threads, so it cannot exit and keeps its rank's
// connections.
PROCESS_CASE(fork_and_leave) {
  init_process_group({.backend = "shm", .timeout = std::chrono::seconds(120)});
  const pid_t child = fork();
  if (child == 0) std::exit(0);  // runs static destructors and exit handlers
  TORCH_CHECK(waitpid(child, nullptr, 0) == child);
  reduce("blocks.2");
  if (rank() == 1) {
    fork_a_child();
    return destroy_process_group();
  }
  report_the_lost([] { reduce("blocks.3"); });
}

TEST(AChildOfARank, DisturbsNobodyByItsExitAndHidesNoLeaving) {
  auto ranks = start_ranks("fork_and_leave", 2);
  expect_end(ranks, 0, 0, {"PeerLost 1:"});
  expect_end(ranks, 1, 0);
}

// Ranks 0 and 1 disagree about a message. Rank 2 waits for both and can learn of it only from the store, which ends
// with rank 0's process.
PROCESS_CASE(end_after_a_mismatch_of_two_ranks) {
  init_process_group({.backend = "gloo", .timeout = std::chrono::seconds(30)});
  auto& ranks = default_process_group()->communicator();
  ranks.barrier({"together", {}})->wait();
  try {
    const auto message = at::zeros({3 + rank()});
    if (rank() != 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (rank() == 0) ranks.send(message, 1, {"message", {}})->wait();
    if (rank() == 1) ranks.recv(message, 0, {"message", {}})->wait();
    ranks.barrier({"end", {}})->wait();
  } catch (const Mismatch& error) {
    std::cout << "Mismatch: " << error.what_without_backtrace() << std::endl;
  }
  if (rank() == 0) std::_Exit(EXIT_SUCCESS);
}

TEST(TheHostOfTheStore, StaysUntilOthersHaveReadTheVerdict) {
  auto ranks = start_ranks("end_after_a_mismatch_of_two_ranks", 3);
  for (int rank = 0; rank < 3; ++rank) {
    expect_end(ranks, rank, 0,
               {str_cat("Mismatch: [fsdp rank ", rank, "/3]"), "ranks disagree about the next collective"});
    EXPECT_THAT(ranks.wait(rank).output, testing::Not(testing::HasSubstr("is lost")));
  }
}

}  // namespace
}  // namespace fsdp::test
