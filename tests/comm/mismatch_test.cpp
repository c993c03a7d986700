// Ranks that do not do the same: an error on every rank that names both, in time.

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "comm/core/fault_point.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

constexpr std::array<int64_t, 4> kOffsets{0, 4, 8, 12};

Communicator& all_ranks() { return default_process_group()->communicator(); }

void reduce(int rank, const std::string& subject, int64_t numel = 12) {
  const std::array<int64_t, 4> offsets{0, 4, 8, numel};
  all_ranks()
      .reduce_scatter(at::empty({offsets[rank + 1] - offsets[rank]}), at::ones({numel}), offsets, {subject, {}})
      ->wait();
}

void gather(int rank, const std::string& subject) {
  all_ranks()
      .all_gather(at::empty({12}), at::ones({kOffsets[rank + 1] - kOffsets[rank]}), kOffsets, {subject, {}})
      ->wait();
}

// The messages of the Mismatch that every one of 3 ranks must meet in `fn`.
std::vector<std::string> mismatches(const std::function<void(int)>& fn, ThreadRanksOptions options = {}) {
  std::vector<std::string> messages;
  std::mutex mutex;
  run_thread_ranks(
      3,
      [&](int rank) {
        try {
          fn(rank);
        } catch (const Mismatch& error) {
          std::lock_guard lock(mutex);
          messages.emplace_back(error.what_without_backtrace());
        }
      },
      std::move(options));
  return messages;
}

TEST(MismatchedOperation, NamesBothRanksAndBothOperations) {
  const auto messages = mismatches([](int rank) {
    fsdp::barrier();
    rank == 1 ? gather(rank, "blocks.0") : reduce(rank, "blocks.1");
  });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("rank 1 runs all_gather of 'blocks.0' (#3), 48 bytes"),
                                   HasSubstr("runs reduce_scatter of 'blocks.1' (#3), 48 bytes"))));
}

TEST(MismatchedSubject, IsFoundThoughAllElseIsEqual) {
  const auto messages = mismatches([](int rank) { reduce(rank, rank == 2 ? "blocks.1" : "blocks.0"); });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("(subject)"), HasSubstr("'blocks.0'"),
                                   HasSubstr("rank 2 runs reduce_scatter of 'blocks.1'"))));
}

TEST(MismatchedSubject, IsFoundBehindTheBytesThatTravel) {
  const std::string common(500, 'x');
  const auto messages = mismatches([&](int rank) { reduce(rank, common + (rank ? "a" : "b")); });
  EXPECT_THAT(messages, SizeIs(3));
}

TEST(MismatchedSize, IsFoundBeforeDataMoves) {
  const auto messages = mismatches([](int rank) { reduce(rank, "w", rank == 0 ? 12 : 13); });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("48 bytes"), HasSubstr("52 bytes"))));
}

TEST(MismatchedVotes, AreFound) {
  const auto messages =
      mismatches([](int rank) { all_ranks().barrier({"w", std::vector<uint8_t>(rank == 0 ? 3 : 4)})->wait(); });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(HasSubstr("number of votes")));
}

TEST(MismatchedOrder, IsFoundAtTheFirstDifference) {
  const auto messages = mismatches([](int rank) {
    for (const int block : {0, 1, 2}) {
      gather(rank, c10::str("blocks.", rank == 2 && block > 0 ? 3 - block : block));
    }
  });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("'blocks.1' (#3)"), HasSubstr("'blocks.2' (#3)"))));
}

TEST(MismatchedPeers, OfSendAndRecvAreFound) {
  const auto messages = mismatches([](int rank) {
    const at::Tensor tensor = at::zeros({5});
    if (rank == 0) all_ranks().send(tensor, 1, {"w", {}})->wait();
    if (rank == 1) all_ranks().send(tensor, 0, {"w", {}})->wait();
    if (rank == 2) fsdp::barrier();
  });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("send of 'w' to rank 1"), HasSubstr("send of 'w' to rank 0"))));
}

// Not by the timeout, which is a minute here.
TEST(RanksThatWaitForEachOther, AreToldSoAndWhatEachOneRuns) {
  const auto messages = mismatches([](int rank) {
    auto group = default_process_group();
    auto& order = rank == 1 ? group->reductions() : group->communicator();
    order.barrier({rank == 1 ? "backward" : "forward", {}})->wait();
  });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("ranks wait for each other: rank "), HasSubstr("barrier of 'forward'"),
                                   HasSubstr("rank 1 runs barrier of 'backward'"), HasSubstr("Last operations: rank 0: "),
                                   HasSubstr("look for a forward, a backward"))));
}

// Its lane waits like the others', but its thread may still begin what they need.
TEST(RanksThatWaitForOneThatComputes, AreLeftInPeace) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string counter = "fsdp/attempt_0/group_1/roll_call/0/waiting";
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = make_thread_rank(store, rank, 3, {.backend = "gloo"});
      auto& ranks = group->communicator();
      const at::Tensor number = at::zeros({1});
      const auto early = rank == 2 ? ranks.recv(number, 0, {"early", {}}) : nullptr;
      // The others are counted, and have time to conclude what is wrong.
      while (rank == 2 && store->add(counter, 0) < 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(3));
      ranks.barrier({})->wait();
      if (rank == 0) ranks.send(at::ones({1}), 2, {"early", {}})->wait();
      if (early) early->wait();
      EXPECT_EQ(number.item<float>(), rank == 2 ? 1 : 0);
      ranks.barrier({})->wait();
      EXPECT_LE(store->add(counter, 0), 2);
    });
  }
  for (auto& thread : threads) thread.join();
}

thread_local bool t_out_of_memory = false;

TEST(AnErrorOfOneRankInAReduction, ReachesTheOthersThoughThatRankStays) {
  std::atomic<int> ended = 0;
  on_fault_point = [](const char* place) {
    if (t_out_of_memory && std::string_view(place) == "round open") throw std::runtime_error("no memory");
  };
  run_thread_ranks(3,
                   [&](int rank) {
                     std::string message = "no error";
                     t_out_of_memory = rank == 1;
                     try {
                       reduce(rank, "blocks.4");
                     } catch (const std::exception& error) {
                       message = error.what();
                     }
                     t_out_of_memory = false;
                     EXPECT_THAT(message, HasSubstr(rank == 1 ? "no memory"
                                                              : "rank 1 failed in reduce_scatter of 'blocks.4' (#2): "
                                                                "no memory"));
                     ++ended;
                     while (ended < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                   },
                   {.backend = "shm"});
  on_fault_point = nullptr;
}

TEST(AfterAMismatch, EveryLaneFailsAtOnceWithTheSameError) {
  int failures = 0;
  std::mutex mutex;
  run_thread_ranks(2, [&](int rank) {
    auto group = default_process_group();
    EXPECT_THROW(rank == 0 ? fsdp::barrier() : all_ranks().barrier({"other", {}})->wait(), Mismatch);
    for (Communicator* lane : {&group->communicator(), &group->reductions()}) {
      try {
        lane->barrier({"later", {}})->wait();
      } catch (const Mismatch& error) {
        EXPECT_THAT(error.what_without_backtrace(), HasSubstr("runs barrier of 'other'"));
        std::lock_guard lock(mutex);
        ++failures;
      }
    }
  });
  EXPECT_EQ(failures, 4);
}

TEST(ARankThatDoesNotJoin, IsNamedWithItsLastOperationThoughItIsAlive) {
  std::vector<std::string> messages;
  std::mutex mutex;
  std::atomic<int> waiting = 2;
  run_thread_ranks(3,
                   [&](int rank) {
                     reduce(rank, "blocks.7");
                     if (rank == 1) {
                       // Busy elsewhere until the others have given up.
                       while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
                     }
                     try {
                       gather(rank, "blocks.8");
                     } catch (const Mismatch& error) {
                       std::lock_guard lock(mutex);
                       messages.emplace_back(error.what_without_backtrace());
                     }
                     --waiting;
                   },
                   {.timeout = std::chrono::milliseconds(1500), .wrap = {}});
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("all_gather of 'blocks.8' (#3) timed out"),
                                   HasSubstr("rank 1 is alive but did not join"),
                                   HasSubstr("rank 1: reduce_scatter of 'blocks.7' (#2), done"))));
}

TEST(ARankThatLeaves, IsLostToThoseThatWait) {
  int lost = 0;
  std::mutex mutex;
  run_thread_ranks(3, [&](int rank) {
    if (rank == 2) return;
    try {
      fsdp::barrier();
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank(), 2) << error.what_without_backtrace();
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 2 has left"));
      std::lock_guard lock(mutex);
      ++lost;
    }
  });
  EXPECT_EQ(lost, 2);
}

TEST(ARankThatThrows, IsTheFirstFailureThatTheTestSees) {
  try {
    run_thread_ranks(3, [](int rank) {
      if (rank == 1) throw UsageError("deliberate");
      fsdp::barrier();
    });
    ADD_FAILURE() << "no exception";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 1: deliberate"));
  }
}

TEST(WrongArguments, AreUsageErrorsBeforeAnythingIsCommunicated) {
  run_thread_ranks(2, [](int rank) {
    auto& lane = all_ranks();
    const at::Tensor four = at::zeros({4}), two = at::zeros({2});
    const std::array<int64_t, 3> good{0, 2, 4}, descending{0, 5, 4};
    const std::array<int64_t, 2> few{0, 4};
    EXPECT_THROW((void)lane.all_gather(four, two, few, {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, two, descending, {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, four, good, {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, two.to(at::kDouble), good, {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, four.slice(0, 1, 3), good, {}), UsageError);
    EXPECT_THROW((void)lane.reduce_scatter(four.slice(0, 0, 2), four, good, {}), UsageError);
    EXPECT_THROW((void)lane.reduce_scatter(two.to(at::kLong), four.to(at::kLong), good, {}), UsageError);
    EXPECT_THROW((void)lane.broadcast(at::zeros({4, 4}).t().slice(0, 1), 0, {}), UsageError);
    EXPECT_THROW((void)lane.broadcast(four, 2, {}), UsageError);
    EXPECT_THROW((void)lane.send(four, rank, {}), UsageError);
    lane.barrier({})->wait();
  });
}

}  // namespace
}  // namespace fsdp::test
