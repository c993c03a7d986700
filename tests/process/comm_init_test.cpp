// How ranks find each other, and what they are told when they do not.

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "support/backend.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void expect_all_end_well(ProcessRanks& ranks, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(ranks.wait(rank).exit_code, 0) << "rank " << rank << ": " << ranks.wait(rank).output;
  }
}

PROCESS_CASE(join_from_environment) {
  init_process_group({.backend = test_backend()});
  const at::Tensor tensor = at::full({3}, 1 << rank());
  default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
  TORCH_CHECK(tensor.eq((1 << world_size()) - 1).all().item<bool>());
  TORCH_CHECK(local_rank() == rank());
  // Ends without destroy_process_group().
}

TEST(Init, TakesTheRanksFromTheEnvironment) {
  for (const int world_size : {1, 3}) {
    ProcessRanks ranks("join_from_environment", {.world_size = world_size});
    expect_all_end_well(ranks, world_size);
  }
}

TEST(Init, UsesTheStoreOfTheLauncher) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const c10d::TCPStore store("127.0.0.1", options);
  for (const char* attempt : {"0", "1"}) {
    ProcessRanks ranks("join_from_environment", {.world_size = 2,
                                                 .environment = {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                                 {"TORCHELASTIC_RESTART_COUNT", attempt},
                                                                 {"MASTER_PORT", std::to_string(store.getPort())}}});
    expect_all_end_well(ranks, 2);
  }
}

// Prints "listens at ADDRESS" for each socket that listens at MASTER_PORT, as the kernel writes addresses.
PROCESS_CASE(print_where_the_store_listens) {
  init_process_group({.backend = test_backend()});
  barrier();
  std::ostringstream port;
  port << ':' << std::hex << std::uppercase << std::setw(4) << std::setfill('0')
       << std::stoi(std::getenv("MASTER_PORT"));
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream sockets(path);
    std::string line, number, local, remote, state;
    for (std::getline(sockets, line); std::getline(sockets, line);) {
      std::istringstream(line) >> number >> local >> remote >> state;
      if (rank() == 0 && state == "0A" && local.ends_with(port.str())) std::cout << "listens at " << local << std::endl;
    }
  }
  barrier();
}

TEST(TheStore, OfRank0ListensOnTheLoopbackDeviceForAnAddressThere) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    ProcessRanks ranks("print_where_the_store_listens", {.world_size = 2, .environment = {{"MASTER_ADDR", host}}});
    EXPECT_EQ(ranks.wait(0).exit_code, 0) << ranks.wait(0).output;
    const std::string& output = ranks.wait(0).output;
    EXPECT_THAT(output, HasSubstr("listens at "));
    EXPECT_THAT(output, testing::Not(HasSubstr("listens at 00000000")));
  }
}

// Each rank finds its own value of VARIABLE: apples on rank 0, pears on the others.
PROCESS_CASE(join_with_variables_that_differ) {
  setenv(std::getenv("VARIABLE"), std::getenv("RANK") == std::string("0") ? "apples" : "pears", 1);
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(3)});
  barrier();
}

TEST(Init, RefusesARankOfAnotherRunNamingBoth) {
  ProcessRanks ranks("join_with_variables_that_differ",
                     {.world_size = 2, .environment = {{"VARIABLE", "TORCHELASTIC_RUN_ID"}}});
  EXPECT_EQ(ranks.wait(0).exit_code + ranks.wait(1).exit_code, 2);
  EXPECT_THAT(ranks.wait(0).output + ranks.wait(1).output, AllOf(HasSubstr("run 'apples'"), HasSubstr("run 'pears'")));
}

TEST(Init, RefusesARankThatDoesNotKnowTheJobsToken) {
  ProcessRanks ranks("join_with_variables_that_differ",
                     {.world_size = 2, .environment = {{"VARIABLE", "FSDP_JOB_TOKEN"}}});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank).exit_code, 1);
    EXPECT_THAT(ranks.wait(rank).output, HasSubstr("does not have this job's token"));
  }
}

PROCESS_CASE(join_again_and_again) {
  for (int round = 0; round < 3; ++round) {
    init_process_group({.backend = test_backend()});
    barrier();
    destroy_process_group();
  }
}

TEST(Init, MayFollowDestroyAnyNumberOfTimes) {
  ProcessRanks ranks("join_again_and_again", {.world_size = 3});
  expect_all_end_well(ranks, 3);
}

PROCESS_CASE(join_without_rank_1) {
  if (std::getenv("RANK") == std::string("1")) return;
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(2)});
}

TEST(Init, NamesTheRanksThatDoNotCome) {
  ProcessRanks ranks("join_without_rank_1", {.world_size = 3});
  EXPECT_EQ(ranks.wait(0).exit_code, 1);
  EXPECT_THAT(ranks.wait(0).output,
              AllOf(HasSubstr("[fsdp rank 0/3] init_process_group"), HasSubstr("missing: rank 1.")));
}

PROCESS_CASE(join_without_rank_0) {
  if (std::getenv("RANK") == std::string("0")) return;
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(2)});
}

TEST(Init, NamesTheAddressWhereNobodyAnswers) {
  ProcessRanks ranks("join_without_rank_0", {.world_size = 2});
  EXPECT_EQ(ranks.wait(1).exit_code, 1);
  EXPECT_THAT(ranks.wait(1).output, HasSubstr(c10::str("at 127.0.0.1:", ranks.port())));
}

PROCESS_CASE(join_with_different_world_sizes) {
  ProcessGroupOptions options{.backend = test_backend(), .timeout = std::chrono::seconds(5)};
  options.rank = std::stoi(std::getenv("RANK"));
  options.world_size = 2 + *options.rank;
  init_process_group(options);
}

TEST(Init, FindsRanksThatDisagreeAboutTheWorld) {
  ProcessRanks ranks("join_with_different_world_sizes", {.world_size = 2});
  EXPECT_EQ(ranks.wait(0).exit_code, 1);
  EXPECT_THAT(ranks.wait(0).output, AllOf(HasSubstr("rank 0 has world size 2"), HasSubstr("rank 1 has world size 3")));
}

TEST(Init, NamesThePortThatIsTaken) {
  c10d::TCPStoreOptions store_options;
  store_options.port = 0;
  store_options.isServer = true;
  store_options.waitWorkers = false;
  const c10d::TCPStore store("127.0.0.1", store_options);
  ProcessGroupOptions options{.backend = test_backend(), .timeout = std::chrono::seconds(5)};
  options.rank = 0;
  options.world_size = 2;
  options.address = c10::str("127.0.0.1:", store.getPort());
  try {
    init_process_group(options);
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr(c10::str("port ", store.getPort(), " of 127.0.0.1 is taken")));
  }
}

// Whatever listens there never answers; LibTorch alone would wait for ever.
TEST(Init, NamesTheAddressWhereAnotherProgramListens) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ProcessGroupOptions options{.backend = "gloo", .timeout = std::chrono::seconds(2)};
  options.rank = 1;
  options.world_size = 2;
  options.address = c10::str("127.0.0.1:", ntohs(address.sin_port));
  try {
    init_process_group(options);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("[fsdp rank 1/2] init_process_group"), HasSubstr("at " + *options.address),
                      HasSubstr("within 2.0 s"), HasSubstr("Is rank 0 running")));
  }
  // The listener stays open: LibTorch's attempt still waits for it.
}

TEST(Init, TwiceIsAnError) {
  ProcessGroupOptions options{.backend = test_backend()};
  options.rank = 0;
  options.world_size = 1;
  init_process_group(options);
  EXPECT_EQ(world_size(), 1);
  EXPECT_THROW(init_process_group(options), UsageError);
  destroy_process_group();
}

TEST(TheDefaultGroup, IsAnErrorBeforeInit) {
  EXPECT_THROW(default_process_group(), UsageError);
  EXPECT_THROW(rank(), UsageError);
}

}  // namespace
}  // namespace fsdp::test
