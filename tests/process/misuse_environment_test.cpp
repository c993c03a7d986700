// Tests that programs that are started wrongly, or whose ranks differ, end with an error and a nonzero exit code on
// every rank.

#include "misuse/net.h"
#include "process/ranks.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

PROCESS_CASE(shard_a_linear) {
  if (std::getenv("INITS") != nullptr) init_process_group({.backend = test_backend()});
  torch::nn::Linear linear(4, 4);
  fully_shard(linear);
}

// The suite Environment tests all variables that can be wrong.
TEST(FullyShard, WithoutAGroupOrAVariableOfOneEndsTheProgramAndNamesIt) {
  auto uninitialised = start_ranks("shard_a_linear", 1);
  auto without_address = start_ranks("shard_a_linear", 1, {{"INITS", "1"}, {"MASTER_ADDR", ""}});
  expect_end(uninitialised, 0, 1, {"fsdp::init_process_group()"});
  expect_end(without_address, 0, 1, {"MASTER_ADDR", "init_process_group"});
}

// faults_under_fsdprun_test.py runs this case.
PROCESS_CASE(shard_models_that_differ) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  torch::nn::Linear linear(4, 3 + rank());
  fully_shard(linear);
}

PROCESS_CASE(leave_in_the_middle_of_training) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  auto net = std::make_shared<MisuseNetImpl>();
  net->to(torch::kDouble);
  auto group = shard(*net);
  for (int step = 0; step < 2; ++step) {
    if (step == 1 && rank() == 1) return;  // ends without destroy_process_group()
    ForwardScope scope(group);
    small_loss(*net, share(step));
  }
}

TEST(ARankThatEndsEarly, IsLostToTheOthers) {
  auto ranks = start_ranks("leave_in_the_middle_of_training", 2);
  expect_end(ranks, 1, 0);
  expect_end(ranks, 0, 1, {"[fsdp rank 0/2]", "rank 1"});
}

}  // namespace
}  // namespace fsdp::test
