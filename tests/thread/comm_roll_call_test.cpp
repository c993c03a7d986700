// The thread that answers roll calls, and how it ends.

#include "comm/roll_call.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

namespace fsdp::test {
namespace {

// A program's exit leaves every group, also those that another thread is about to destroy.
TEST(RollCall, MayBeLeftByTwoThreadsAtOnce) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int round = 0; round < 20; ++round) {
    const auto call = RollCall::start(store, 0, 1, {});
    std::thread other([&] { call->leave(); });
    call->leave();
    other.join();
    EXPECT_TRUE(store->check({"left/0"}));
    store->deleteKey("left/0");
  }
}

}  // namespace
}  // namespace fsdp::test
