// How ranks find each other, and what they are told when they do not.

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <thread>

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
  for (int round = 0; round < 3; ++round) {
    if (round > 0) destroy_process_group();  // The program ends without it.
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

// The variable is apples on rank 0 and pears on rank 1.
PROCESS_CASE(join_with_another_variable) {
  const bool is_first = std::getenv("RANK") == std::string("0");
  setenv(std::getenv("VARIABLE"), is_first ? "apples" : "pears", /*overwrite=*/1);
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(4)});
}

struct OtherJob {
  std::string variable;
  std::vector<std::string> parts;
};

class CommInitOfTwoJobs : public testing::TestWithParam<OtherJob> {};

// One rank may wait for the other in vain.
TEST_P(CommInitOfTwoJobs, NamesWhatDiffers) {
  const auto& [variable, parts] = GetParam();
  ProcessRanks ranks("join_with_another_variable", {.world_size = 2, .environment = {{"VARIABLE", variable}}});
  expect_ends(ranks, 2, 1);
  for (const auto& part : parts) EXPECT_THAT(ranks.wait(0).output + ranks.wait(1).output, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(Variables, CommInitOfTwoJobs,
                         testing::Values(OtherJob{"FSDP_JOB_TOKEN", {"does not have this job's token"}},
                                         OtherJob{"TORCHELASTIC_RUN_ID", {"run 'apples'", "run 'pears'"}}));

ProcessGroupOptions options_at(const std::string& address, int rank, std::chrono::seconds timeout) {
  return {.backend = test_backend(), .timeout = timeout, .rank = rank, .world_size = 2, .address = address};
}

// What a rank is told that does not find the other one.
std::string error_of(const ProcessGroupOptions& options) {
  try {
    new_process_group(options);
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::string error_at(int port, int rank) {
  return error_of(options_at(c10::str("127.0.0.1:", port), rank, std::chrono::seconds(1)));
}

TEST(CommInit, NamesTheRankThatIsMissing) {
  const HeldPort port;
  EXPECT_THAT(error_at(port.number(), 0),
              AllOf(HasSubstr("[fsdp rank 0/2] init_process_group"), HasSubstr("missing: rank 1.")));
}

TEST(CommInit, NamesSettingsThatDiffer) {
  const char* other_backend = test_backend() == "gloo" ? "shm" : "gloo";
  struct Difference {
    std::function<void(ProcessGroupOptions&)> on_rank_1;
    std::vector<std::string> parts;
  };
  for (const auto& [change, parts] : std::vector<Difference>{
           {[](auto& options) { options.world_size = 3; }, {"rank 0 has world size 2", "rank 1 has world size 3"}},
           {[=](auto& options) { options.backend = other_backend; },
            {"ranks disagree: ", c10::str("backend ", other_backend), "Start every rank with the same settings"}}}) {
    const HeldPort port;
    std::vector<std::string> told(2);
    const auto join = [&, &change = change](int rank) {
      auto options = options_at(c10::str("127.0.0.1:", port.number()), rank, std::chrono::seconds(2));
      if (rank == 1) change(options);
      told[static_cast<size_t>(rank)] = error_of(options);
    };
    std::thread other(join, 1);
    join(0);
    other.join();
    for (const auto& part : parts) EXPECT_THAT(told[0], HasSubstr(part));
    EXPECT_NE(told[1], "no error");
  }
}

TEST(CommInit, NamesThePortThatIsTaken) {
  const c10d::TCPStore store("127.0.0.1", store_of_another());
  EXPECT_THAT(error_at(store.getPort(), 0), HasSubstr(c10::str("port ", store.getPort(), " of 127.0.0.1 is taken")));
}

// Nobody listens, or a program that never answers, for which LibTorch alone would wait for ever.
TEST(CommInit, NamesTheAddressWhereNoStoreIs) {
  for (const bool somebody_listens : {false, true}) {
    const HeldPort held;
    const int port = held.number();
    if (somebody_listens) {
      // It stays open: LibTorch's attempt still waits for it.
      const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
      ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      ASSERT_EQ(listen(listener, 8), 0);
    }
    EXPECT_THAT(error_at(port, 1),
                AllOf(HasSubstr("[fsdp rank 1/2] init_process_group"), HasSubstr(c10::str("at 127.0.0.1:", port)),
                      HasSubstr("within 1.0 s"), HasSubstr("Is rank 0 running")));
  }
}

// As the kernel writes addresses.
std::vector<std::string> addresses_that_listen_at(int port) {
  std::ostringstream end;
  end << ':' << std::hex << std::uppercase << std::setw(4) << std::setfill('0') << port;
  std::vector<std::string> addresses;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream sockets(path);
    std::string line, number, local, remote, state;
    for (std::getline(sockets, line); std::getline(sockets, line);) {
      std::istringstream(line) >> number >> local >> remote >> state;
      if (state == "0A" && local.ends_with(end.str())) addresses.push_back(local);
    }
  }
  return addresses;
}

TEST(CommInit, HasTheStoreListenOnTheLoopbackDeviceForAnAddressThere) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const HeldPort port;
    const auto join = [&](int rank) {
      return new_process_group(options_at(c10::str(host, ':', port.number()), rank, std::chrono::seconds(60)));
    };
    std::shared_ptr<ProcessGroup> second;
    std::thread other([&] { second = join(1); });
    const auto first = join(0);
    other.join();
    const auto addresses = addresses_that_listen_at(port.number());
    EXPECT_THAT(addresses, testing::Not(testing::IsEmpty()));
    for (const auto& address : addresses) EXPECT_FALSE(address.starts_with("00000000")) << address;
  }
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
