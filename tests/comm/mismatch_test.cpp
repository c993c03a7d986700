// Ranks that do different things: every rank gets an error in time, which names both.

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string_view>

#include "comm/core/fault_point.h"
#include "comm/frame.h"

namespace fsdp::test {
namespace {

using std::chrono::milliseconds;

void reduce(int rank, const std::string& subject, int64_t numel = 12) {
  const std::array<int64_t, 4> offsets{0, 4, 8, numel};
  all_ranks()
      .reduce_scatter(at::empty({offsets[rank + 1] - offsets[rank]}), at::ones({numel}), offsets, {subject, {}})
      ->wait();
}

void gather(const std::string& subject) {
  all_ranks().all_gather(at::empty({12}), at::ones({4}), std::array<int64_t, 4>{0, 4, 8, 12}, {subject, {}})->wait();
}

// Expects that `fn` throws a Mismatch on every rank whose message has all the parts.
void expect_error_of_ranks(int world, const std::function<void(int)>& fn, const std::vector<std::string>& parts,
                           milliseconds timeout = std::chrono::seconds(60)) {
  std::atomic<int> met = 0;
  const auto act = [&](int rank) {
    const auto message = error_of<Mismatch>([&] { fn(rank); });
    met += message != "no error";
    expect_parts(message, parts);
  };
  run_thread_ranks(world, act, {.timeout = timeout});
  EXPECT_EQ(met, world);
}

TEST(CommMismatch, IsToldToEveryRankAndNamesBothOperations) {
  const std::string common(500, 'x');
  const auto send_to_rank_1 = [](int rank, const at::Tensor& sent) {
    if (rank == 0) all_ranks().send(sent, 1, {"w", {}})->wait();
    if (rank == 1) all_ranks().recv(at::ones({4}), 0, {"w", {}})->wait();
    if (rank == 2) fsdp::barrier();
  };
  struct Difference {
    const char* in;
    std::function<void(int rank)> act;
    std::vector<std::string> parts;
  };
  const std::vector<Difference> differences{
      {"operation",
       [](int rank) {
         fsdp::barrier();
         rank == 1 ? gather("blocks.0") : reduce(rank, "blocks.1");
       },
       {"rank 1 runs all_gather of 'blocks.0' (#3), 48 bytes", "runs reduce_scatter of 'blocks.1' (#3), 48 bytes"}},
      {"subject",
       [](int rank) { reduce(rank, rank == 2 ? "blocks.1" : "blocks.0"); },
       {"(subject)", "'blocks.0'", "rank 2 runs reduce_scatter of 'blocks.1'"}},
      {"subject, behind the bytes that travel", [&](int rank) { reduce(rank, common + (rank ? "a" : "b")); }, {}},
      {"size", [](int rank) { reduce(rank, "w", rank == 0 ? 12 : 13); }, {"48 bytes", "52 bytes"}},
      {"votes",
       [](int rank) { all_ranks().barrier({"w", std::vector<uint8_t>(rank == 0 ? 3 : 4)})->wait(); },
       {"number of votes"}},
      {"order",
       [](int rank) {
         for (const int block : {0, 1, 2}) gather(str_cat("blocks.", rank == 2 && block > 0 ? 3 - block : block));
       },
       {"'blocks.1' (#3)", "'blocks.2' (#3)"}},
      {"messages that both send",
       [](int rank) { rank == 2 ? fsdp::barrier() : all_ranks().send(at::zeros({5}), 1 - rank, {"w", {}})->wait(); },
       {"send of 'w' to rank 1", "send of 'w' to rank 0"}},
      {"bytes of a message",
       [&](int rank) { send_to_rank_1(rank, at::ones({5})); },
       {"bytes", "send of 'w' to rank 1 (#1)", "recv of 'w' from rank 0 (#1)"}},
      {"dtype of a message",
       [&](int rank) { send_to_rank_1(rank, at::ones({4}, at::kInt)); },
       {"dtype", "send of 'w' to rank 1 (#1)", "recv of 'w' from rank 0 (#1)"}},
      // The timeout, a minute here, is not what finds this.
      {"ranks that wait for each other",
       [](int rank) {
         auto group = default_process_group();
         auto& order = rank == 1 ? group->reductions() : group->communicator();
         order.barrier({rank == 1 ? "backward" : "forward", {}})->wait();
       },
       {"ranks wait for each other: rank ", "barrier of 'forward'", "rank 1 runs barrier of 'backward'",
        "Last operations: rank 0: ", "look for a forward, a backward"}}};
  for (const auto& [in, act, parts] : differences) {
    SCOPED_TRACE(in);
    expect_error_of_ranks(3, act, parts);
  }
}

// Begins an operation that differs between two ranks. Over shared memory this call already throws, so it returns the
// output through `output`.
using Differing = std::function<std::shared_ptr<Work>(int rank, at::Tensor& output)>;

TEST(CommMismatch, OfSmallDataWritesNothing) {
  const std::vector<std::pair<Differing, std::string>> differences{
      {[](int rank, at::Tensor& output) {
         output = at::full({rank == 0 ? 64 : 65}, -1.0f);
         return all_ranks().all_reduce(output, ReduceOp::kSum, {"w", {}});
       },
       "256 bytes"},
      {[](int rank, at::Tensor& output) {
         const std::vector<int64_t> offsets{0, rank + 5, 20};
         output = at::full({20}, -1.0f);
         return all_ranks().all_gather(output, at::ones({offsets[rank + 1] - offsets[rank]}), offsets, {"w", {}});
       },
       "boundaries of the ranks' slices"},
      {[](int rank, at::Tensor& output) {
         output = at::full({rank == 0 ? 1 : 1000}, -1.0f);
         return rank == 0 ? all_ranks().send(output, 1, {"w", {}}) : all_ranks().recv(output, 0, {"w", {}});
       },
       "4000 bytes"}};
  for (const auto& [begin, difference] : differences) {
    const auto act = [&begin = begin](int rank) {
      at::Tensor output;
      try {
        begin(rank, output)->wait();
      } catch (const Mismatch&) {
        EXPECT_TRUE(output.eq(-1).all().item<bool>()) << "rank " << rank << " has data of another collective";
        throw;
      }
    };
    expect_error_of_ranks(2, act, {difference});
  }
}

TEST(CommMismatch, IsFollowedByNothingButTheSameErrorInEveryLane) {
  run_thread_ranks(2, [](int rank) {
    bool is_followed = false;
    const auto differ = [&] {
      const auto work = all_ranks().barrier({str_cat("of rank ", rank), {}});
      work->then([&](std::span<const uint8_t>) { is_followed = true; });
      work->wait();
    };
    EXPECT_THROW(differ(), Mismatch);
    EXPECT_FALSE(is_followed);
    for (Communicator* lane : {&all_ranks(), &default_process_group()->reductions()})
      expect_error<Mismatch>([&] { lane->barrier({"later", {}})->wait(); }, {"rank 1 runs barrier of 'of rank 1'"});
  });
}

// Rank 2's lane waits like the others', but its thread may still begin the operation that they need.
TEST(RanksThatWaitForOneThatComputes, AreLeftInPeace) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string counter = "fsdp/attempt_0/group_1/roll_call/0/waiting";
  run_threads(3, [&](int rank) {
    const auto group = make_thread_rank(store, rank, 3, {.backend = "gloo"});
    auto& ranks = group->communicator();
    const at::Tensor number = at::zeros({1});
    const auto early = rank == 2 ? ranks.recv(number, 0, {"early", {}}) : nullptr;
    // The other ranks have been counted as waiting, and get time to conclude that something is wrong.
    while (rank == 2 && store->add(counter, 0) < 2) std::this_thread::sleep_for(milliseconds(20));
    if (rank == 2) std::this_thread::sleep_for(milliseconds(1500));
    ranks.barrier({})->wait();
    if (rank == 0) ranks.send(at::ones({1}), 2, {"early", {}})->wait();
    if (early) early->wait();
    EXPECT_EQ(number.item<float>(), rank == 2 ? 1 : 0);
    ranks.barrier({})->wait();
    EXPECT_LE(store->add(counter, 0), 2);
  });
}

thread_local bool t_out_of_memory = false;

TEST(AnErrorOfOneRankInAReduction, ReachesTheOthersThoughThatRankStays) {
  std::atomic<int> ended = 0;
  on_fault_point = [](const char* place) {
    if (t_out_of_memory && std::string_view(place) == "round open") throw std::runtime_error("no memory");
  };
  const auto act = [&](int rank) {
    std::string message = "no error";
    t_out_of_memory = rank == 1;
    try {
      reduce(rank, "blocks.4");
    } catch (const std::exception& error) {
      message = error.what();
    }
    t_out_of_memory = false;
    EXPECT_THAT(
        message,
        testing::HasSubstr(rank == 1 ? "no memory" : "rank 1 failed in reduce_scatter of 'blocks.4' (#2): no memory"));
    ++ended;
    while (ended < 3) std::this_thread::sleep_for(milliseconds(5));
  };
  run_thread_ranks(3, act, {.backend = "shm"});
  on_fault_point = nullptr;
}

TEST(CommTimeout, NamesARankThatIsAliveWithItsLastOperation) {
  std::atomic<int> waiting = 2;
  const auto act = [&](int rank) {
    reduce(rank, "blocks.7");
    // Rank 1 stays busy elsewhere until the others have given up.
    while (rank == 1 && waiting > 0) std::this_thread::sleep_for(milliseconds(10));
    const auto message = error_of<Mismatch>([&] { gather("blocks.8"); });
    --waiting;
    if (message != "no error") throw Mismatch(message);
  };
  expect_error_of_ranks(3, act,
                        {"all_gather of 'blocks.8' (#3) timed out", "rank 1 is alive but did not join",
                         "rank 1: reduce_scatter of 'blocks.7' (#2), done"},
                        milliseconds(1500));
}

// Rank 0 waits for rank 1, then for rank 2, then for rank 3, for six tenths of the timeout each.
TEST(CommTimeout, HoldsForAnOperationHoweverManyRanksItWaitsForOneAfterTheOther) {
  constexpr milliseconds kTimeout{1000};
  const auto act = [&](int rank) {
    fsdp::barrier();
    std::this_thread::sleep_for(rank * kTimeout * 6 / 10);
    fsdp::barrier();
  };
  expect_error_of_ranks(4, act, {"barrier (#", ") timed out: rank ", "did not join"}, kTimeout);
}

TEST(CommArguments, ThatAreWrongAreUsageErrorsBeforeAnythingIsCommunicated) {
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
    EXPECT_THROW((void)lane.send(four, 1 - rank, {"more votes than fit", std::vector<uint8_t>(609)}), UsageError);
    lane.barrier({})->wait();
  });
}

}  // namespace
}  // namespace fsdp::test
