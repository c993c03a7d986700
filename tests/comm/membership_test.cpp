#include "comm/group/membership.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>

namespace fsdp {
namespace {

using testing::HasSubstr;

std::string error_of(const std::function<void(ProcessGroupOptions&)>& change) {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 2;
  options.address = "127.0.0.1:29500";
  change(options);
  try {
    resolve_membership(options);
  } catch (const UsageError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Membership, TakesOptionsWithoutLookingAtTheEnvironment) {
  ProcessGroupOptions options;
  options.backend = "gloo";
  options.rank = 1;
  options.world_size = 3;
  options.address = "[::1]:29501";
  const Membership membership = resolve_membership(options);
  EXPECT_EQ(membership.rank(), 1);
  EXPECT_EQ(membership.world_size(), 3);
  EXPECT_EQ(membership.rendezvous.local_rank, 1);
  EXPECT_EQ(membership.rendezvous.host, "::1");
  EXPECT_EQ(membership.rendezvous.port, 29501);
  EXPECT_EQ(membership.backend, "gloo");
}

TEST(Membership, NeedsNoAddressWithAStoreOrAlone) {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  EXPECT_EQ(resolve_membership(options).world_size(), 1);
  options.world_size = 2;
  options.store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(resolve_membership(options).world_size(), 2);
}

TEST(Membership, TakesABackendOfTheCallersForOneDevice) {
  const auto make = [](const auto&, int, int, auto) { return c10::intrusive_ptr<c10d::Backend>(); };
  const DeviceBackend own{c10::Device("cuda:1"), make};
  EXPECT_THAT(error_of([&](auto& options) { options.device_backend = own; }), "no error");
  EXPECT_THAT(error_of([&](auto& options) {
                options.device_backend = own;
                options.backend = "shm";
              }),
              HasSubstr("expected the backend \"auto\" or \"gloo\", found \"shm\""));
  EXPECT_THAT(error_of([](auto& options) { options.device_backend = DeviceBackend{c10::kCPU, nullptr}; }),
              HasSubstr("no function that makes it"));
}

TEST(Membership, RefusesARankOutsideTheWorld) {
  EXPECT_THAT(error_of([](auto& options) { options.rank = 2; }),
              HasSubstr("expected a rank from 0 to 1 (world_size is 2), found 2"));
  EXPECT_THAT(error_of([](auto& options) { options.rank = -1; }), HasSubstr("found -1"));
  EXPECT_THAT(error_of([](auto& options) { options.world_size = 0; }), HasSubstr("found 0"));
}

TEST(Membership, RefusesHalfAnIdentity) {
  EXPECT_THAT(error_of([](auto& options) { options.rank.reset(); }), HasSubstr("go together, found only world_size"));
}

TEST(Membership, RefusesBadAddressesAndTimeouts) {
  EXPECT_THAT(error_of([](auto& options) { options.address = "localhost"; }),
              HasSubstr("expected the address \"host:port\", found \"localhost\""));
  EXPECT_THAT(error_of([](auto& options) { options.address = "localhost:99999"; }),
              HasSubstr("expected a port from 1 to 65535"));
  EXPECT_THAT(error_of([](auto& options) { options.timeout = std::chrono::milliseconds(0); }),
              HasSubstr("timeout above zero"));
}

}  // namespace
}  // namespace fsdp
