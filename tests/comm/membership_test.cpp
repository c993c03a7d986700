#include "comm/group/membership.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

TEST(Membership, TakesOptionsWithoutLookingAtTheEnvironment) {
  const Membership membership =
      resolve_membership({.backend = "gloo", .rank = 1, .world_size = 3, .address = "[::1]:29501"});
  EXPECT_EQ(membership.rank(), 1);
  EXPECT_EQ(membership.world_size(), 3);
  EXPECT_EQ(membership.parameters.local_rank, 1);
  EXPECT_EQ(membership.parameters.host, "::1");
  EXPECT_EQ(membership.parameters.port, 29501);
  EXPECT_EQ(membership.backend, "gloo");
  // A rank that is alone, or that gets a store, needs no address.
  EXPECT_EQ(resolve_membership({.rank = 0, .world_size = 1}).world_size(), 1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(resolve_membership({.rank = 0, .world_size = 2, .store = store}).world_size(), 2);
}

TEST(Membership, LooksUpWhetherEachOperationIsComparedFirst) {
  const auto compares_first = [](const char* value) {
    setenv("FSDP_CHECK", value, 1);
    const ProcessGroupOptions options{.rank = 0, .world_size = 2, .address = "127.0.0.1:29500"};
    const bool compares = resolve_membership(options).compares_first;
    unsetenv("FSDP_CHECK");
    return compares;
  };
  EXPECT_FALSE(compares_first(""));
  EXPECT_TRUE(compares_first("each"));
  expect_error([&] { compares_first("all"); }, {"expected FSDP_CHECK to be unset or \"each\", found \"all\""});
  unsetenv("FSDP_CHECK");
}

TEST(Membership, RefusesWhatCannotBe) {
  const DeviceBackend own{c10::Device("cuda:1"),
                          [](const auto&, int, int, auto) { return c10::intrusive_ptr<c10d::Backend>(); }};
  const std::vector<std::pair<std::function<void(ProcessGroupOptions&)>, std::string>> changes{
      {[&](auto& options) { options.device_backend = own; }, "no error"},
      {[&](auto& options) { options.device_backend = own, options.backend = "shm"; },
       "expected the backend \"auto\" or \"gloo\", found \"shm\""},
      {[](auto& options) { options.device_backend = DeviceBackend{c10::Device("cuda:1"), nullptr}; },
       "no function `make`"},
      {[&](auto& options) { options.device_backend = DeviceBackend{c10::kCPU, own.make}; },
       "expected an accelerator as the device of the option device_backend, found cpu"},
      {[](auto& options) { options.rank = 2; }, "expected a rank from 0 to 1 (world_size is 2), found 2"},
      {[](auto& options) { options.rank = -1; }, "found -1"},
      {[](auto& options) { options.world_size = 0; }, "found 0"},
      {[](auto& options) { options.rank.reset(); }, "go together, found only world_size"},
      {[](auto& options) { options.address = "localhost"; }, "expected the address \"host:port\", found \"localhost\""},
      {[](auto& options) { options.address = "localhost:99999"; }, "expected a port from 1 to 65535"},
      {[](auto& options) { options.timeout = std::chrono::milliseconds(0); }, "timeout above zero"}};
  for (const auto& [change, says] : changes) {
    ProcessGroupOptions options{.rank = 0, .world_size = 2, .address = "127.0.0.1:29500"};
    change(options);
    expect_error([&] { resolve_membership(options); }, {says});
  }
}

}  // namespace
}  // namespace fsdp::test
