// Tests that ranks that are processes find each other.

#include <fsdp/process_group.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "process/ranks.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

PROCESS_CASE(join_from_environment) {
  for (int round = 0; round < 3; ++round) {
    if (round > 0) destroy_process_group();  // the last group stays until the program ends
    init_process_group({.backend = test_backend()});
    const at::Tensor tensor = at::full({3}, 1 << rank());
    default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
    TORCH_CHECK(tensor.eq((1 << world_size()) - 1).all().item<bool>());
    TORCH_CHECK(local_rank() == rank());
    barrier();
  }
}

TEST(CommInit, TakesTheRanksFromTheEnvironmentAnyNumberOfTimes) {
  for (const int world_size : {1, 2}) {
    auto ranks = start_ranks("join_from_environment", world_size);
    expect_ends(ranks, world_size, 0);
  }
}

TEST(CommInit, UsesTheStoreOfTheLauncher) {
  const c10d::TCPStore store("127.0.0.1", {.port = 0, .isServer = true, .waitWorkers = false});
  for (const char* attempt : {"0", "1"}) {
    auto ranks = start_ranks("join_from_environment", 2,
                             {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                              {"TORCHELASTIC_RESTART_COUNT", attempt},
                              {"MASTER_PORT", std::to_string(store.getPort())}});
    expect_ends(ranks, 2, 0);
  }
}

std::string file_behind(int descriptor) {
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor));
}

// Text that a rank prints to a closed stream could arrive at another rank or at the store.
PROCESS_CASE(join_with_closed_streams) {
  const std::string closed = std::getenv("CLOSED");
  for (const char number : closed) close(number - '0');
  init_process_group({.backend = test_backend()});
  barrier();
  for (const char number : closed) TORCH_CHECK(file_behind(number - '0') == "/dev/null");
}

TEST(CommInit, OpensNothingInPlaceOfAStandardStream) {
  for (const char* closed : {"2", "012"}) {
    auto ranks = start_ranks("join_with_closed_streams", 2, {{"CLOSED", closed}});
    expect_ends(ranks, 2, 0);
  }
}

// The variable for the run is "apples" on rank 0 and "pears" on rank 1.
PROCESS_CASE(join_another_run) {
  const bool is_first = std::getenv("RANK") == std::string("0");
  setenv("TORCHELASTIC_RUN_ID", is_first ? "apples" : "pears", /*overwrite=*/1);
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(4)});
}

// One rank may wait for the other one until its timeout, so the output of either rank may name the difference.
TEST(CommInitOfTwoRuns, NamesBoth) {
  auto ranks = start_ranks("join_another_run", 2);
  expect_ends(ranks, 2, 1);
  for (const char* part : {"run 'apples'", "run 'pears'"})
    EXPECT_THAT(ranks.wait(0).output + ranks.wait(1).output, testing::HasSubstr(part));
}

}  // namespace
}  // namespace fsdp::test
