// Programs that are started wrongly or whose ranks differ: an error and an exit code that is not 0, on every rank.

#include <iostream>
#include <thread>

#include "support/backend.h"
#include "support/process_ranks.h"
#include "misuse/net.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

PROCESS_CASE(shard_a_linear) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(5)});
  torch::nn::Linear linear(4, 4);
  fully_shard(linear);
}

TEST(TheEnvironment, WithAMissingOrWrongVariableEndsTheProgramWithItsName) {
  struct Case {
    std::map<std::string, std::string> environment;
    std::vector<std::string> parts;
  };
  const std::vector<Case> all{
      {{{"WORLD_SIZE", ""}}, {"WORLD_SIZE"}},
      {{{"RANK", ""}}, {"RANK"}},
      {{{"MASTER_ADDR", ""}}, {"MASTER_ADDR"}},
      {{{"MASTER_PORT", ""}}, {"MASTER_PORT"}},
      {{{"WORLD_SIZE", "two"}}, {"WORLD_SIZE", "two"}},
      {{{"RANK", "7"}}, {"RANK", "7"}},
      {{{"MASTER_PORT", "99999"}}, {"MASTER_PORT", "99999"}},
  };
  for (const auto& [environment, parts] : all) {
    SCOPED_TRACE(environment.begin()->first + "=" + environment.begin()->second);
    ProcessRanks ranks("shard_a_linear", {.world_size = 1, .environment = environment});
    const auto& result = ranks.wait(0);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    for (const auto& part : parts) EXPECT_THAT(result.output, HasSubstr(part));
    EXPECT_THAT(result.output, HasSubstr("init_process_group"));
  }
}

PROCESS_CASE(shard_before_init) {
  torch::nn::Linear linear(4, 4);
  fully_shard(linear);
}

TEST(FullyShard, BeforeInitProcessGroupEndsTheProgram) {
  ProcessRanks ranks("shard_before_init", {.world_size = 2});
  for (int r : {0, 1}) {
    EXPECT_EQ(ranks.wait(r).exit_code, 1);
    EXPECT_THAT(ranks.wait(r).output, HasSubstr("fsdp::init_process_group()"));
  }
}

PROCESS_CASE(shard_models_that_differ) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  torch::nn::Linear linear(4, 3 + rank());
  fully_shard(linear);
}

TEST(RanksWithDifferentModels, EndWithAMismatchThatNamesBoth) {
  ProcessRanks ranks("shard_models_that_differ", {.world_size = 2});
  for (int r : {0, 1}) {
    EXPECT_EQ(ranks.wait(r).exit_code, 1);
    EXPECT_THAT(ranks.wait(r).output,
                AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2]")), HasSubstr("rank 0 runs all_gather of 'fully_shard"),
                      HasSubstr("rank 1 runs all_gather of 'fully_shard")));
  }
}

PROCESS_CASE(forward_on_rank_1_only) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(3)});
  torch::nn::Linear linear(4, 4);
  auto model = fully_shard(linear);
  if (rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(6));
  model(torch::ones({1, 4}));
}

TEST(AForwardOnOneRankOnly, EndsBothAndNamesTheRankThatDidNotCome) {
  const bool shares = test_backend() == "shm";
  ProcessRanks ranks("forward_on_rank_1_only", {.world_size = 2});
  for (int r : {0, 1}) {
    EXPECT_EQ(ranks.wait(r).exit_code, 1) << ranks.wait(r).output;
    EXPECT_FALSE(ranks.wait(r).timed_out);
    EXPECT_THAT(ranks.wait(r).output,
                AllOf(HasSubstr(shares ? "barrier of 'forward scope of Linear'" : "all_gather of 'Linear'"),
                      HasSubstr("rank 0 is alive but did not join"),
                      HasSubstr(shares ? "rank 0: sharing memory for the rows of 'Linear', done"
                                       : "rank 0: all_gather of 'fully_shard Linear")));
  }
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
  EXPECT_EQ(ranks.wait(1).exit_code, 0) << ranks.wait(1).output;
  for (int r : {0, 2}) {
    EXPECT_EQ(ranks.wait(r).exit_code, 1);
    EXPECT_THAT(ranks.wait(r).output, AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/3]")), HasSubstr("rank 1")));
  }
}

}  // namespace
}  // namespace fsdp::test
