// Programs that are started wrongly or whose ranks differ: an error and an exit code that is not 0, on every rank.

#include <fsdp/collectives.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "misuse/net.h"
#include "process/expect_end.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

PROCESS_CASE(shard_a_linear) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(5)});
  torch::nn::Linear linear(4, 4);
  fully_shard(linear);
}

// The suite Environment has all that can be wrong.
TEST(TheEnvironment, WithAMissingOrWrongVariableEndsTheProgramWithItsName) {
  for (const auto& [name, value] : {std::pair("MASTER_ADDR", ""), std::pair("RANK", "7")}) {
    ProcessRanks ranks("shard_a_linear", {.world_size = 1, .environment = {{name, value}}});
    expect_end(ranks, 0, 1, {name, value, "init_process_group"});
  }
}

PROCESS_CASE(shard_before_init) {
  torch::nn::Linear linear(4, 4);
  fully_shard(linear);
}

TEST(FullyShard, BeforeInitProcessGroupEndsTheProgram) {
  ProcessRanks ranks("shard_before_init", {.world_size = 1});
  expect_end(ranks, 0, 1, {"fsdp::init_process_group()"});
}

PROCESS_CASE(shard_models_that_differ) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  torch::nn::Linear linear(4, 3 + rank());
  fully_shard(linear);
}

TEST(RanksWithDifferentModels, EndWithAMismatchThatNamesBoth) {
  ProcessRanks ranks("shard_models_that_differ", {.world_size = 2});
  for (int r : {0, 1})
    expect_end(ranks, r, 1,
               {c10::str("[fsdp rank ", r, "/2]"), "rank 0 runs all_gather of 'fully_shard",
                "rank 1 runs all_gather of 'fully_shard"});
}

PROCESS_CASE(forward_on_rank_1_only) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(3)});
  const auto process_of_rank_1 = all_reduce(torch::tensor(rank() == 1 ? getpid() : 0)).item<int>();
  torch::nn::Linear linear(4, 4);
  auto model = fully_shard(linear);
  while (rank() == 0 && kill(process_of_rank_1, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  model(torch::ones({1, 4}));
}

TEST(AForwardOnOneRankOnly, EndsBothAndNamesTheRankThatDidNotCome) {
  const bool shares = test_backend() == "shm";
  ProcessRanks ranks("forward_on_rank_1_only", {.world_size = 2});
  for (int r : {1, 0})
    expect_end(
        ranks, r, 1,
        {shares ? "barrier of 'forward scope of Linear'" : "all_gather of 'Linear'", "rank 0 is alive but did not join",
         shares ? "rank 0: sharing memory for the rows of 'Linear', done"
                : "rank 0: all_gather of 'fully_shard Linear"});
}

PROCESS_CASE(leave_in_the_middle_of_training) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  auto net = std::make_shared<MisuseNetImpl>();
  net->to(torch::kDouble);
  auto group = shard(*net);
  for (int step = 0; step < 4; ++step) {
    if (step == 2 && rank() == 1) return;  // without destroy_process_group()
    ForwardScope scope(group);
    small_loss(*net, share(step));
  }
}

TEST(ARankThatEndsEarly, IsLostToTheOthers) {
  ProcessRanks ranks("leave_in_the_middle_of_training", {.world_size = 3});
  expect_end(ranks, 1, 0);
  for (int r : {0, 2}) expect_end(ranks, r, 1, {c10::str("[fsdp rank ", r, "/3]"), "rank 1"});
}

}  // namespace
}  // namespace fsdp::test
