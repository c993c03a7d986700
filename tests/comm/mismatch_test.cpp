// Tests of ranks that run different operations. Every rank must get an error in time that names both operations.

#include <torch/torch.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string_view>

#include "comm/core/fault_point.h"
#include "comm/frame.h"

namespace fsdp::test {
namespace {

using std::chrono::milliseconds;

void reduce(const std::string& subject, int64_t numel = 12) {
  all_ranks().reduce_scatter(at::empty({numel / 3}), at::ones({numel}), {subject})->wait();
}

void gather(const std::string& subject) { all_ranks().all_gather(at::empty({12}), at::ones({4}), {subject})->wait(); }

// Reduces planes. Each pair gives the number of elements of a plane's slices, and its dtype.
void reduce_planes(const std::vector<std::pair<int64_t, at::ScalarType>>& planes) {
  std::vector<ReducePlane> reduced;
  for (const auto& [numel, dtype] : planes)
    reduced.push_back({at::empty({numel}, dtype), {{0, at::ones({3 * numel}, dtype)}}});
  all_ranks().reduce_scatter(reduced, 1.0, {"w"})->wait();
}

// Expects that `fn` throws a Mismatch on every rank, with a message that contains all of `parts`.
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
         rank == 1 ? gather("blocks.0") : reduce("blocks.1");
       },
       {"rank 1 runs all_gather of 'blocks.0' (#3), 48 bytes", "runs reduce_scatter of 'blocks.1' (#3), 48 bytes"}},
      {"subject",
       [](int rank) { reduce(rank == 2 ? "blocks.1" : "blocks.0"); },
       {"(subject)", "'blocks.0'", "rank 2 runs reduce_scatter of 'blocks.1'"}},
      {"subject, beyond the bytes that are sent", [&](int rank) { reduce(common + (rank ? "a" : "b")); }, {}},
      {"size", [](int rank) { reduce("w", rank == 0 ? 12 : 15); }, {"48 bytes", "60 bytes"}},
      {"number of planes",
       [](int rank) {
         rank == 1 ? reduce_planes({{5, at::kFloat}}) : reduce_planes({{5, at::kFloat}, {2, at::kFloat}});
       },
       {"number of tensors", "60 bytes of Float", "84 bytes in 2 tensors, the first of Float"}},
      {"length of the second plane, where it travels with the fingerprint",
       [](int rank) {
         reduce_planes({{5, at::kFloat}, {rank == 1 ? 3 : 2, at::kFloat}});
       },
       {"lengths of the tensors", "84 bytes", "96 bytes"}},
      {"boundary between planes",
       [](int rank) {
         reduce_planes({{rank == 1 ? 1000 : 1100, at::kFloat}, {rank == 1 ? 1100 : 1000, at::kFloat}});
       },
       {"(lengths of the tensors)"}},
      {"dtype of the second plane",
       [](int rank) {
         reduce_planes({{1000, at::kFloat}, {1000, rank == 1 ? at::kHalf : at::kBFloat16}});
       },
       {"(dtype)"}},
      {"order",
       [](int rank) {
         for (const int block : {0, 1, 2}) gather(str_cat("blocks.", rank == 2 && block > 0 ? 3 - block : block));
       },
       {"'blocks.1' (#3)", "'blocks.2' (#3)"}},
      {"bytes of a message",
       [&](int rank) { send_to_rank_1(rank, at::ones({5})); },
       {"bytes", "send of 'w' to rank 1 (#1)", "recv of 'w' from rank 0 (#1)"}},
      {"dtype of a message",
       [&](int rank) { send_to_rank_1(rank, at::ones({4}, at::kInt)); },
       {"dtype", "send of 'w' to rank 1 (#1)", "recv of 'w' from rank 0 (#1)"}}};
  for (const auto& [in, act, parts] : differences) {
    SCOPED_TRACE(in);
    expect_error_of_ranks(3, act, parts);
  }
}

// These operations send data to different ranks. A rank gets a header where it expects none, or none where it expects
// one. The error must come long before the timeout, which is a minute here.
TEST(CommMismatch, OfPatternsIsFoundInOneOfTheNextCollectivesAtTheLatest) {
  const std::vector<std::pair<std::string, std::function<void()>>> operations{
      {"barrier", [] { all_ranks().barrier({"w"})->wait(); }},
      {"broadcast", [] { all_ranks().broadcast(at::ones({1000}), 0, {"w"})->wait(); }},
      {"all_gather", [] { all_ranks().all_gather(at::empty({4000}), at::ones({1000}), {"w"})->wait(); }}};
  for (const auto& [name, act] : operations)
    for (const auto& [others_name, others_act] : operations) {
      if (name == others_name) continue;
      SCOPED_TRACE(str_cat(name, " and ", others_name));
      std::atomic<int> met = 0;
      const auto act_and_go_on = [&, &act = act, &others_act = others_act, &name = name](int rank) {
        const auto message = error_of<Mismatch>([&] {
          rank == 2 ? act() : others_act();
          all_ranks().all_gather(at::empty({4}), at::ones({1}), {"after"})->wait();
        });
        met += message != "no error";
        expect_parts(message, {"ranks disagree", str_cat("rank 2 runs ", name, " of 'w' (#2)")});
      };
      run_thread_ranks(4, act_and_go_on, {.backend = "gloo"});
      EXPECT_EQ(met, 4);
    }
}

// Begins an operation that differs between two ranks. Over shared memory the call itself already throws, so the
// function returns the output in `output` and not as its result.
using Differing = std::function<std::shared_ptr<Work>(int rank, at::Tensor& output)>;

TEST(CommMismatch, OfSmallDataWritesNothing) {
  const std::vector<std::pair<Differing, std::string>> differences{
      {[](int rank, at::Tensor& output) {
         output = at::full({rank == 0 ? 64 : 65}, -1.0f);
         return all_ranks().all_reduce(output, ReduceOp::kSum, {"w", {}});
       },
       "256 bytes"},
      {[](int rank, at::Tensor& output) {
         output = at::full({20}, -1.0f);
         const auto first = output.narrow(0, 0, 8 + 2 * rank), second = output.narrow(0, 8 + 2 * rank, 12 - 2 * rank);
         const auto half_of = [](const at::Tensor& whole) { return at::ones({whole.numel() / 2}); };
         return all_ranks().all_gather({{first, half_of(first)}, {second, half_of(second)}}, {"w"});
       },
       "lengths of the tensors"},
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
      work->then([&] { is_followed = true; });
      work->wait();
    };
    EXPECT_THROW(differ(), Mismatch);
    EXPECT_FALSE(is_followed);
    for (Communicator* lane : {&all_ranks(), &default_process_group()->reductions()})
      expect_error<Mismatch>([&] { lane->barrier({"later", {}})->wait(); }, {"rank 1 runs barrier of 'of rank 1'"});
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
      reduce("blocks.4");
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
    reduce("blocks.7");
    // Rank 1 is busy elsewhere until the other ranks have given up.
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

TEST(CommTimeout, EndsRanksThatWaitForEachOther) {
  const auto in_two_queues = [](int rank) {
    const auto group = default_process_group();
    auto& queue = rank == 1 ? group->reductions() : group->communicator();
    queue.barrier({rank == 1 ? "backward" : "forward", {}})->wait();
  };
  const auto both_send = [](int rank) {
    rank == 2 ? fsdp::barrier() : all_ranks().send(at::zeros({5}), 1 - rank, {"w", {}})->wait();
  };
  const auto expect_timeout = [](const auto& act, std::vector<std::string> parts) {
    for (const char* part : {"timed out: rank ", "is alive but did not join", "Last operations: rank 0: ",
                             "look for a forward, a backward"})
      parts.emplace_back(part);
    expect_error_of_ranks(3, act, parts, milliseconds(1000));
  };
  expect_timeout(in_two_queues, {"barrier of 'forward' (#", "barrier of 'backward' (#"});
  expect_timeout(both_send, {"send of 'w' to rank 1", "send of 'w' to rank 0"});
}

TEST(CommTimeout, NamesTheRankForWhichAllOthersWaitThroughOthers) {
  std::atomic<int> waiting = 2;
  const auto act = [&](int rank) {
    while (rank == 1 && waiting > 0) std::this_thread::sleep_for(milliseconds(10));
    const auto wait = [&] {
      rank == 1 ? fsdp::barrier() : all_ranks().recv(at::ones({4}), rank == 0 ? 2 : 1, {"w"})->wait();
    };
    const auto message = error_of<Mismatch>(wait);
    --waiting;
    throw Mismatch(message);
  };
  expect_error_of_ranks(3, act, {"timed out: rank 1 is alive but did not join"}, milliseconds(1000));
}

// Rank 0 waits for rank 1, then for rank 2 and then for rank 3, each time for six tenths of the timeout.
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
    const at::Tensor four = at::zeros({4}), two = at::zeros({2}), three = at::zeros({3});
    const auto reduce_pieces = [&](std::vector<Piece> pieces) {
      return lane.reduce_scatter({ReducePlane{two, std::move(pieces)}}, 1.0, {});
    };
    EXPECT_THROW((void)lane.all_gather(std::vector<GatherPlane>(), {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, three, {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, four, {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, two.to(at::kDouble), {}), UsageError);
    EXPECT_THROW((void)lane.all_gather(four, four.slice(0, 1, 3), {}), UsageError);
    EXPECT_THROW((void)lane.all_gather({{four, two}, {four, three}}, {}), UsageError);
    EXPECT_THROW((void)lane.reduce_scatter(four.slice(0, 0, 2), four, {}), UsageError);
    EXPECT_THROW((void)lane.reduce_scatter(two.to(at::kLong), four.to(at::kLong), {}), UsageError);
    EXPECT_THROW((void)reduce_pieces({{2, three}}), UsageError);
    EXPECT_THROW((void)reduce_pieces({{2, at::zeros({2})}, {0, at::zeros({2})}}), UsageError);
    EXPECT_THROW((void)lane.all_reduce(std::vector<at::Tensor>(), ReduceOp::kSum, {}), UsageError);
    EXPECT_THROW((void)lane.all_to_all(three, at::zeros({3}), {}), UsageError);
    EXPECT_THROW((void)lane.all_to_all(four, two, {}), UsageError);
    EXPECT_THROW((void)lane.all_to_all(four, four, {}), UsageError);
    EXPECT_THROW((void)lane.broadcast(at::zeros({4, 4}).t().slice(0, 1), 0, {}), UsageError);
    EXPECT_THROW((void)lane.broadcast(four, 2, {}), UsageError);
    EXPECT_THROW((void)lane.send(four, rank, {}), UsageError);
    lane.barrier({})->wait();
  });
}

}  // namespace
}  // namespace fsdp::test
