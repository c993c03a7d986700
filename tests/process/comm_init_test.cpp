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

#include "process/expect_end.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

c10d::TCPStoreOptions store_of_another() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return options;
}

PROCESS_CASE(join_from_environment) {
  init_process_group({.backend = test_backend()});
  const at::Tensor tensor = at::full({3}, 1 << rank());
  default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
  TORCH_CHECK(tensor.eq((1 << world_size()) - 1).all().item<bool>());
  TORCH_CHECK(local_rank() == rank());
  // Ends without destroy_process_group().
}

TEST(CommInit, TakesTheRanksFromTheEnvironment) {
  for (const int world_size : {1, 2}) {
    ProcessRanks ranks("join_from_environment", {.world_size = world_size});
    expect_ends(ranks, world_size, 0);
  }
}

TEST(CommInit, UsesTheStoreOfTheLauncher) {
  const c10d::TCPStore store("127.0.0.1", store_of_another());
  for (const char* attempt : {"0", "1"}) {
    ProcessRanks ranks("join_from_environment", {.world_size = 2,
                                                 .environment = {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                                 {"TORCHELASTIC_RESTART_COUNT", attempt},
                                                                 {"MASTER_PORT", std::to_string(store.getPort())}}});
    expect_ends(ranks, 2, 0);
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

TEST(CommInit, HasTheStoreListenOnTheLoopbackDeviceForAnAddressThere) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    ProcessRanks ranks("print_where_the_store_listens", {.world_size = 2, .environment = {{"MASTER_ADDR", host}}});
    expect_end(ranks, 0, 0, {"listens at "});
    EXPECT_THAT(ranks.wait(0).output, testing::Not(HasSubstr("listens at 00000000")));
  }
}

PROCESS_CASE(join_again_and_again) {
  for (int round = 0; round < 3; ++round) {
    init_process_group({.backend = test_backend()});
    barrier();
    destroy_process_group();
  }
}

TEST(CommInit, MayFollowDestroyAnyNumberOfTimes) {
  ProcessRanks ranks("join_again_and_again", {.world_size = 3});
  expect_ends(ranks, 3, 0);
}

// What goes wrong is in the environment: a rank that is ABSENT, a VARIABLE that is apples on rank 0 and pears on the
// others, or WORLDS that differ.
PROCESS_CASE(join_wrongly) {
  const std::string own_rank = std::getenv("RANK");
  if (const char* absent = std::getenv("ABSENT"); absent != nullptr && absent == own_rank) return;
  if (const char* variable = std::getenv("VARIABLE")) setenv(variable, own_rank == "0" ? "apples" : "pears", 1);
  const char* seconds = std::getenv("TIMEOUT");
  ProcessGroupOptions options{.backend = test_backend(),
                              .timeout = std::chrono::seconds(seconds == nullptr ? 10 : std::stoi(seconds))};
  if (std::getenv("WORLDS") != nullptr) {
    options.rank = std::stoi(own_rank);
    options.world_size = 2 + *options.rank;
  }
  init_process_group(options);
  barrier();
}

TEST(CommInit, NamesWhatIsWrong) {
  struct Mistake {
    std::map<std::string, std::string> environment;
    int world;
    std::vector<int> told;  // the ranks that end with an error, in which the parts are
    std::vector<std::string> parts;
  };
  const std::vector<Mistake> mistakes{
      {{{"ABSENT", "1"}, {"TIMEOUT", "3"}}, 3, {0}, {"[fsdp rank 0/3] init_process_group", "missing: rank 1."}},
      {{{"ABSENT", "0"}, {"TIMEOUT", "2"}}, 2, {1}, {}},
      {{{"VARIABLE", "FSDP_JOB_TOKEN"}}, 2, {0, 1}, {"does not have this job's token"}},
      {{{"WORLDS", "differ"}}, 2, {0}, {"rank 0 has world size 2", "rank 1 has world size 3"}}};
  for (const auto& [environment, world, told, parts] : mistakes) {
    SCOPED_TRACE(environment.begin()->first + "=" + environment.begin()->second);
    ProcessRanks ranks("join_wrongly", {.world_size = world, .environment = environment});
    for (const int rank : told) expect_end(ranks, rank, 1, parts);
    if (told.front() == 1) {
      EXPECT_THAT(ranks.wait(1).output, HasSubstr(c10::str("at 127.0.0.1:", ranks.port())));
    }
  }
}

// The one that comes second names both; the other one waits for it in vain.
TEST(CommInit, RefusesARankOfAnotherRunNamingBoth) {
  ProcessRanks ranks("join_wrongly",
                     {.world_size = 2, .environment = {{"VARIABLE", "TORCHELASTIC_RUN_ID"}, {"TIMEOUT", "4"}}});
  expect_ends(ranks, 2, 1);
  EXPECT_THAT(ranks.wait(0).output + ranks.wait(1).output, AllOf(HasSubstr("run 'apples'"), HasSubstr("run 'pears'")));
}

// What init_process_group says to a rank whose store would be at this port.
std::string error_at(int port, int own_rank) {
  ProcessGroupOptions options{.backend = test_backend(), .timeout = std::chrono::seconds(1)};
  options.rank = own_rank;
  options.world_size = 2;
  options.address = c10::str("127.0.0.1:", port);
  try {
    init_process_group(options);
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(CommInit, NamesThePortThatIsTaken) {
  const c10d::TCPStore store("127.0.0.1", store_of_another());
  EXPECT_THAT(error_at(store.getPort(), 0), HasSubstr(c10::str("port ", store.getPort(), " of 127.0.0.1 is taken")));
}

// Whatever listens there never answers; LibTorch alone would wait for ever.
TEST(CommInit, NamesTheAddressWhereAnotherProgramListens) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_THAT(error_at(port, 1),
              AllOf(HasSubstr("[fsdp rank 1/2] init_process_group"), HasSubstr(c10::str("at 127.0.0.1:", port)),
                    HasSubstr("within 1.0 s"), HasSubstr("Is rank 0 running")));
  // The listener stays open: LibTorch's attempt still waits for it.
}

TEST(TheDefaultGroup, IsMadeOnce) {
  EXPECT_THROW(default_process_group(), UsageError);
  EXPECT_THROW(rank(), UsageError);
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  init_process_group(options);
  EXPECT_EQ(world_size(), 1);
  EXPECT_THROW(init_process_group(options), UsageError);
  destroy_process_group();
}

}  // namespace
}  // namespace fsdp::test
