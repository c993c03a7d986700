#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>

#include "comm/core/local_communicator.h"
#include "support/faulty_communicator.h"
#include "support/recording_communicator.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Entry = OperationLog::Entry;

TEST(RecordingCommunicator, WritesDownOperationsOfEveryLane) {
  const auto log = std::make_shared<OperationLog>();
  ProcessGroup group(make_recording_communicator(make_local_communicator(), log), 0);
  const at::Tensor whole = at::zeros({4}), part = at::zeros({4});
  const std::array<int64_t, 2> offsets{0, 4};
  group.communicator().all_gather(whole, part, offsets, {"a", {}})->wait();
  group.reductions().reduce_scatter(part, whole, offsets, {"b", {}})->wait();
  group.communicator().barrier({"c", {}})->wait();
  EXPECT_THAT(log->entries(),
              ElementsAre(Entry{"duplicate", "reductions", 0, "main"}, Entry{"all_gather", "a", 16, "main"},
                          Entry{"reduce_scatter", "b", 16, "reductions"}, Entry{"barrier", "c", 0, "main"}));
}

TEST(RecordingCommunicator, LeavesResultsAsTheyAre) {
  std::array<std::shared_ptr<OperationLog>, 2> logs;
  for (auto& log : logs) log = std::make_shared<OperationLog>();
  ThreadRanksOptions options;
  options.wrap = [&](auto inner, int rank) { return make_recording_communicator(std::move(inner), logs[rank]); };
  run_thread_ranks(
      2,
      [](int rank) {
        const at::Tensor tensor = at::full({3}, rank + 1.0);
        auto& lane = default_process_group()->reductions();
        lane.all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
        EXPECT_TRUE(tensor.eq(3).all().item<bool>());
      },
      options);
  EXPECT_EQ(logs[0]->entries(), logs[1]->entries());
  EXPECT_EQ(logs[0]->entries().back(), (Entry{"all_reduce(sum)", "w", 12, "reductions"}));
}

TEST(FaultyCommunicator, ThrowsAtTheCallAskedFor) {
  auto communicator = make_faulty_communicator(make_local_communicator(), {.kind = Fault::Kind::kThrow, .at = 1});
  communicator->barrier({"first", {}})->wait();
  EXPECT_THROW((void)communicator->barrier({"second", {}}), Error);
  communicator->barrier({"third", {}})->wait();
}

TEST(FaultyCommunicator, CountsOnlyTheLaneAskedFor) {
  auto communicator =
      make_faulty_communicator(make_local_communicator(), {.kind = Fault::Kind::kThrow, .at = 0, .lane = "reductions"});
  ProcessGroup group(communicator, 0);
  group.communicator().barrier({})->wait();
  EXPECT_THROW((void)group.reductions().barrier({}), Error);
}

TEST(FaultyCommunicator, AnotherSubjectOnOneRankIsAMismatchOnAll) {
  ThreadRanksOptions options;
  options.wrap = [](auto inner, int rank) {
    if (rank != 1) return inner;
    return make_faulty_communicator(std::move(inner), {.kind = Fault::Kind::kOtherSubject, .at = 2, .lane = "main"});
  };
  int mismatches = 0;
  std::mutex mutex;
  run_thread_ranks(
      3,
      [&](int) {
        fsdp::barrier();
        try {
          fsdp::barrier();
        } catch (const Mismatch& error) {
          EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 1 runs barrier"));
          EXPECT_THAT(error.what_without_backtrace(), HasSubstr("injected fault"));
          std::lock_guard lock(mutex);
          ++mismatches;
        }
      },
      options);
  EXPECT_EQ(mismatches, 3);
}

TEST(FaultyCommunicator, ADelayedRankIsWaitedFor) {
  static constexpr auto kDelay = std::chrono::milliseconds(300);
  ThreadRanksOptions options;
  options.wrap = [](auto inner, int rank) {
    if (rank != 1) return inner;
    return make_faulty_communicator(std::move(inner),
                                    {.kind = Fault::Kind::kDelay, .at = 1, .lane = "main", .delay = kDelay});
  };
  std::atomic<bool> was_late = false;
  run_thread_ranks(
      2,
      [&](int rank) {
        const auto begin = std::chrono::steady_clock::now();
        if (rank == 1) was_late = true;
        fsdp::barrier();
        if (rank == 1) {
          EXPECT_GE(std::chrono::steady_clock::now() - begin, kDelay);
        }
        EXPECT_TRUE(was_late) << "rank " << rank << " went on alone";
      },
      options);
}

}  // namespace
}  // namespace fsdp::test
