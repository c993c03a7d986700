// The thread that answers roll calls, and how it ends.

#include "comm/failure/roll_call.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <thread>
#include <vector>

#include "support/stores.h"

namespace fsdp::test {
namespace {

// A program's exit leaves every group, even one that another thread is about to destroy.
TEST(RollCall, MayBeLeftByTwoThreadsAtOnce) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int round = 0; round < 20; ++round) {
    const auto call = RollCall::start(store, {}, {});
    std::thread other([&] { call->leave(); });
    call->leave();
    other.join();
    EXPECT_TRUE(store->check({"left/0"}));
    store->deleteKey("left/0");
  }
}

// How often each of 32 ranks asks the store, on average, from one rank's alarm until all know the verdict.
double questions_by_rank(bool one_is_silent) {
  constexpr int kRanks = 32;
  std::atomic<int> asked = 0;
  const auto store = c10::make_intrusive<WatchedStore>(c10::make_intrusive<c10d::HashStore>(), [&] { ++asked; });
  // The ranks wait for a silent one until the answer time is over. Otherwise its length only allows for a busy machine.
  const RollCallOptions options{.poll = std::chrono::milliseconds(200),
                                .answer_time = std::chrono::seconds(one_is_silent ? 2 : 20)};
  std::vector<std::shared_ptr<RollCall>> calls;
  for (int rank = 0; rank < (one_is_silent ? kRanks - 1 : kRanks); ++rank)
    calls.push_back(RollCall::start(store, {rank, kRanks}, options));
  asked = 0;
  const auto verdict = calls[0]->alarm(Cause::kTimeout, kRanks - 1, "barrier", "no news");
  EXPECT_EQ(verdict.rank, kRanks - 1);
  EXPECT_EQ(verdict.kind, one_is_silent ? Verdict::Kind::kPeerLost : Verdict::Kind::kMismatch);
  for (const auto& call : calls) {
    while (!call->verdict()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(call->verdict()->text, verdict.text);
  }
  const int questions = asked;
  for (const auto& call : calls) call->leave();
  return static_cast<double>(questions) / kRanks;
}

TEST(AnAlarm, AsksTheStoreInProportionToTheRanks) {
  EXPECT_LE(questions_by_rank(/*one_is_silent=*/false), 20);
  EXPECT_LE(questions_by_rank(/*one_is_silent=*/true), 25);
}

}  // namespace
}  // namespace fsdp::test
