// The communicators that tests wrap around another one.

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <array>

#include "comm/core/local_communicator.h"
#include "support/faulty_communicator.h"
#include "support/recording_communicator.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using Entry = OperationLog::Entry;

TEST(RecordingCommunicator, WritesDownOperationsOfEveryLaneAndLeavesTheirResults) {
  std::array<std::shared_ptr<OperationLog>, 2> logs{std::make_shared<OperationLog>(), std::make_shared<OperationLog>()};
  const auto act = [](int rank) {
    const std::array<int64_t, 3> offsets{0, 2, 4};
    const at::Tensor whole = at::zeros({4}), part = at::full({2}, rank + 1.0f), sum = at::zeros({2});
    auto& group = *default_process_group();
    group.communicator().all_gather(whole, part, offsets, {"a", {}})->wait();
    group.reductions().reduce_scatter(sum, whole, offsets, {"b", {}})->wait();
    group.communicator().barrier({"c", {}})->wait();
    EXPECT_TRUE(sum.eq(2 * (rank + 1)).all().item<bool>());
  };
  run_thread_ranks(2, act, {.wrap = [&](auto inner, int rank) {
                     return make_recording_communicator(std::move(inner), logs[rank]);
                   }});
  EXPECT_THAT(logs[0]->entries(),
              testing::ElementsAre(Entry{"duplicate", "reductions", 0, "main"}, Entry{"all_gather", "a", 16, "main"},
                                   Entry{"reduce_scatter", "b", 16, "reductions"}, Entry{"barrier", "c", 0, "main"}));
  EXPECT_EQ(logs[0]->entries(), logs[1]->entries());
}

TEST(FaultyCommunicator, ThrowsAtTheCallOfTheLaneAskedFor) {
  ProcessGroup group(
      make_faulty_communicator(make_local_communicator(), {.kind = Fault::Kind::kThrow, .at = 1, .lane = "reductions"}),
      0);
  for (int i = 0; i < 2; ++i) group.communicator().barrier({})->wait();
  group.reductions().barrier({"first", {}})->wait();
  EXPECT_THROW((void)group.reductions().barrier({"second", {}}), Error);
  group.reductions().barrier({"third", {}})->wait();
}

// Wraps rank 1's communicator.
ThreadRanksOptions with_fault(const Fault& fault) {
  return {.wrap = [fault](auto inner, int rank) {
    return rank == 1 ? make_faulty_communicator(std::move(inner), fault) : std::move(inner);
  }};
}

TEST(FaultyCommunicator, AnotherSubjectOnOneRankIsAMismatchOnAll) {
  std::atomic<int> mismatches = 0;
  const auto act = [&](int) {
    fsdp::barrier();
    try {
      fsdp::barrier();
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  testing::AllOf(HasSubstr("rank 1 runs barrier"), HasSubstr("injected fault")));
      ++mismatches;
    }
  };
  run_thread_ranks(3, act, with_fault({.kind = Fault::Kind::kOtherSubject, .at = 2, .lane = "main"}));
  EXPECT_EQ(mismatches, 3);
}

TEST(FaultyCommunicator, ADelayedRankIsWaitedFor) {
  constexpr auto kDelay = std::chrono::milliseconds(100);
  const auto act = [&](int rank) {
    const auto begin = std::chrono::steady_clock::now();
    fsdp::barrier();
    if (rank == 1) {
      EXPECT_GE(std::chrono::steady_clock::now() - begin, kDelay);
    }
  };
  run_thread_ranks(2, act, with_fault({.kind = Fault::Kind::kDelay, .at = 1, .lane = "main", .delay = kDelay}));
}

}  // namespace
}  // namespace fsdp::test
