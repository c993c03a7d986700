// Tests of the errors of ranks that cannot find each other at an address, and of the addresses on which their store
// listens.

#include <fsdp/process_group.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <array>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "comm/frame.h"
#include "launch/variables.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

ProcessGroupOptions options_at(const std::string& address, int rank, std::chrono::seconds timeout) {
  return {.backend = test_backend(), .timeout = timeout, .rank = rank, .world_size = 2, .address = address};
}

// Expects the error of a rank that does not find the other rank at this port.
void expect_error_at(int port, int rank, const std::vector<std::string>& parts) {
  const auto options = options_at(str_cat("127.0.0.1:", port), rank, std::chrono::seconds(1));
  expect_error<Error>([&] { new_process_group(options); }, parts);
}

TEST(CommInit, NamesTheRankThatIsMissing) {
  expect_error_at(HeldPort().number(), 0, {"[fsdp rank 0/2] init_process_group", "missing: rank 1."});
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
            {"ranks disagree: ", str_cat("backend ", other_backend), "Start every rank with the same settings"}}}) {
    const HeldPort port;
    run_threads(2, [&, &change = change, &parts = parts](int rank) {
      auto options = options_at(str_cat("127.0.0.1:", port.number()), rank, std::chrono::seconds(2));
      if (rank == 1) change(options);
      const auto told = error_of<Error>([&] { new_process_group(options); });
      EXPECT_NE(told, "no error");
      // Rank 1 may be waiting for a third rank, and then gets another error.
      if (rank == 0) expect_parts(told, parts);
    });
  }
}

TEST(CommInit, NamesThePortThatIsTaken) {
  const c10d::TCPStore store("127.0.0.1", {.port = 0, .isServer = true, .waitWorkers = false});
  expect_error_at(store.getPort(), 0, {str_cat("port ", store.getPort(), " of 127.0.0.1 is taken")});
}

// Either no program listens at the address, or one listens that never answers. LibTorch alone would wait for it for
// ever.
TEST(CommInit, NamesTheAddressWhereNoStoreIs) {
  for (const bool somebody_listens : {false, true}) {
    const HeldPort held;
    const int port = held.number();
    if (somebody_listens) {
      // The socket stays open, because LibTorch's attempt to connect still waits for it.
      const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
      ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      ASSERT_EQ(listen(listener, 8), 0);
    }
    expect_error_at(
        port, 1,
        {"[fsdp rank 1/2] init_process_group", str_cat("at 127.0.0.1:", port), "within 1.0 s", "Is rank 0 running"});
  }
}

// Returns the local addresses that listen at the port, as the kernel writes them.
std::vector<std::string> addresses_that_listen_at(int port) {
  TextWriter end;
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
    std::array<std::shared_ptr<ProcessGroup>, 2> groups;
    run_threads(2, [&](int rank) {
      groups[static_cast<size_t>(rank)] =
          new_process_group(options_at(str_cat(host, ':', port.number()), rank, std::chrono::seconds(60)));
    });
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
