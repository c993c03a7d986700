// Tests every collective over every backend, with the cases of collective_cases.h and against sequential sums, bit for
// bit. Up to 8 KiB from one rank to another travel with the fingerprint, so sizes lie on both sides of that limit.

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "comm/frame.h"
#include "support/collective_cases.h"
#include "support/own_communicator.h"

namespace fsdp::test {
namespace {

at::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + rank));
  const auto values = at::randn({numel}, generator, at::kFloat).mul_(1 << (3 * rank % 9));
  return dtype == at::kBool ? values > 0 : values.to(dtype);
}

// Returns the numbers of elements of a rank's slice: none, one, as many as travel with a fingerprint, one more, and
// many.
std::vector<int64_t> slices_of(at::ScalarType dtype, bool with_large_ones) {
  const int64_t most = (8 << 10) / static_cast<int64_t>(c10::elementSize(dtype));
  std::vector<int64_t> slices{0, 1, most, most + 1, 10'009};
  if (with_large_ones) slices.push_back(100'003);
  return slices;
}

// The inputs of all ranks. They are made once, and all ranks read them.
struct Inputs {
  std::vector<int> hosts;
  at::ScalarType dtype;
  int64_t slice;
  std::vector<at::Tensor> by_rank = {};
  std::array<at::Tensor, 3> reduced = {};  // indexed by operation; reduced in rank order, first inside each host
  at::Tensor sum = {};

  Inputs(std::vector<int> hosts_of_ranks, at::ScalarType type, int64_t length)
      : hosts(std::move(hosts_of_ranks)), dtype(type), slice(length) {
    for (size_t rank = 0; rank < hosts.size(); ++rank)
      by_rank.push_back(values_of(static_cast<int>(rank), slice * std::ssize(hosts), dtype));
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin})
      reduced[static_cast<size_t>(op)] = add_in_order<at::Tensor>(
          hosts, [&](int rank) { return by_rank[rank]; },
          [op](const auto& a, const auto& b) {
            return op == ReduceOp::kSum ? a + b : op == ReduceOp::kMax ? at::maximum(a, b) : at::minimum(a, b);
          });
    sum = reduced[0];
  }
  std::string about(int rank) const { return str_cat("rank ", rank, ", ", dtype, ", slices of ", slice); }
};

// The test parameter holds each rank's host number.
class CommCollectives : public testing::TestWithParam<std::vector<int>> {
 protected:
  static int world() { return static_cast<int>(GetParam().size()); }
  static void run(const std::function<void(int rank)>& fn) {
    const bool has_hosts = GetParam().back() > 0;
    run_thread_ranks(
        world(), fn,
        {.backend = has_hosts ? "hierarchical" : "", .hosts = has_hosts ? GetParam() : std::vector<int>()});
  }
  static std::vector<int> hosts() { return GetParam().back() > 0 ? GetParam() : test_hosts(world()); }
  // Runs `fn` on every rank for tensors of all dtypes and sizes. Only float tensors come in the largest size.
  static void run_for_each(std::initializer_list<at::ScalarType> dtypes,
                           const std::function<void(int rank, const Inputs& inputs)>& fn) {
    std::vector<Inputs> all;
    for (const auto dtype : dtypes)
      for (const int64_t slice : slices_of(dtype, dtype == at::kFloat)) all.emplace_back(hosts(), dtype, slice);
    run([&](int rank) {
      for (const auto& inputs : all) fn(rank, inputs);
    });
  }
};

TEST_P(CommCollectives, MoveSeveralPlanesAsOne) {
  run([](int) { check_collectives(all_ranks()); });
}

TEST_P(CommCollectives, RunOverACommunicatorOfTheUsersOwn) {
  run([](int) {
    const std::shared_ptr<Communicator> inner(&all_ranks(), [](Communicator*) {});
    CommunicatorOfMessages own(inner);
    check_collectives(own);
    own.barrier({})->wait();
  });
}

TEST_P(CommCollectives, ReduceScatterSumsInRankOrderAndMultipliesByTheScaleItself) {
  run_for_each({at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}, [](int rank, const Inputs& inputs) {
    for (const double scale : {1.0, 0.5, 1.0 / 3}) {  // rounding a third to bf16 makes it 0.19 % larger
      if (scale < 0.5 && inputs.dtype != at::kBFloat16) continue;
      const auto own_sum = inputs.sum.narrow(0, rank * inputs.slice, inputs.slice);
      const auto expected = (own_sum.to(at::kDouble) * scale).to(inputs.dtype);
      const auto output = at::full_like(expected, -1), input = inputs.by_rank[rank].clone();
      all_ranks().reduce_scatter({ReducePlane{output, {{0, input}}}}, scale, {"w"})->wait();
      EXPECT_TRUE(output.equal(expected)) << inputs.about(rank) << ", times " << scale;
      EXPECT_TRUE(input.equal(inputs.by_rank[rank])) << "the input changed";
    }
  });
}

TEST_P(CommCollectives, AllReduceHasTheBitsOfTheSumInRankOrder) {
  run_for_each({at::kFloat, at::kDouble, at::kBFloat16, at::kInt, at::kLong, at::kBool},
               [](int rank, const Inputs& inputs) {
                 for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin})
                   for (const int64_t less : {0, 1}) {  // one element less makes slices unequal
                     const auto& expected = inputs.reduced[static_cast<size_t>(op)];
                     const int64_t numel = std::max<int64_t>(0, expected.numel() - less);
                     const auto tensor = inputs.by_rank[rank].narrow(0, 0, numel).clone().view({1, numel});
                     all_ranks().all_reduce(tensor, op, {"w"})->wait();
                     EXPECT_TRUE(tensor[0].equal(expected.narrow(0, 0, numel)))
                         << inputs.about(rank) << ", operation " << static_cast<int>(op);
                   }
               });
}

// Ranks prepare each collective while others are in flight. Data that arrives for a collective stays until it is used.
TEST_P(CommCollectives, SmallAndLargeOnesTakeTurnsWhileManyAreInFlight) {
  constexpr int kMany = 30;
  constexpr std::array<int64_t, 6> kSizes{1, 64, 65, 1000, 0, 5000};
  run([&](int rank) {
    std::vector<at::Tensor> sums, gathered;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kMany; ++i) {
      const int64_t numel = kSizes[static_cast<size_t>(i) % kSizes.size()];
      sums.push_back(at::full({numel}, static_cast<float>(i + rank)));
      works.push_back(all_ranks().all_reduce(sums.back(), ReduceOp::kSum, {str_cat("sum ", i)}));
      gathered.push_back(at::zeros({numel * world()}));
      works.push_back(
          all_ranks().all_gather(gathered.back(), at::full({numel}, static_cast<float>(100 * i + rank)), {"gather"}));
    }
    std::ranges::reverse(works);
    for (const auto& work : works) work->wait();
    for (int i = 0; i < kMany; ++i) {
      EXPECT_TRUE(sums[i].eq(world() * i + world() * (world() - 1) / 2).all().item<bool>()) << i;
      const auto expected = (at::arange(world(), at::kFloat) + 100 * i).repeat_interleave(sums[i].numel());
      EXPECT_TRUE(gathered[i].equal(expected)) << i;
    }
  });
}

TEST_P(CommCollectives, WhatFollowsThemIsCalledInTheirOrderBeforeTheyAreWaitedFor) {
  run([](int) {
    std::vector<int> order;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(all_ranks().barrier({str_cat("b", i)}));
      works.back()->then([&, i] { order.push_back(i); });
    }
    works.back()->wait();
    EXPECT_THAT(order, testing::SizeIs(20));
    EXPECT_TRUE(std::ranges::is_sorted(order));
    const auto over = all_ranks().barrier({});
    over->wait();
    over->then([&] { order.clear(); });
    EXPECT_THAT(order, testing::IsEmpty());
  });
}

TEST_P(CommCollectives, WhatFollowsOneOfManyRoundsComesWhileNoThreadOfTheRankComesBy) {
  constexpr int64_t kNumel = int64_t{3} << 20;
  run([](int rank) {
    const auto sum = at::zeros({kNumel / world()}), own = at::full({sum.numel() * world()}, rank + 1.0f);
    std::promise<void> followed;
    const auto work = all_ranks().reduce_scatter(sum, own, {"sum"});
    work->then([&] { followed.set_value(); });
    ASSERT_EQ(followed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    work->wait();
    EXPECT_TRUE(sum.eq(world() * (world() + 1) / 2).all().item<bool>());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommCollectives,
                         testing::Values(std::vector(1, 0), std::vector(2, 0), std::vector(3, 0), std::vector(4, 0)));
// These tests run on several hosts, whatever the backend under test. The hosts of the first instance have different
// numbers of ranks.
INSTANTIATE_TEST_SUITE_P(Hosts, CommCollectives,
                         testing::Values(std::vector{0, 1, 1, 1}, std::vector{0, 0, 1, 1, 2, 2}));

// Each peer gets the two planes in more than two chunks of at most 4 MiB, so a chunk is received into memory that an
// earlier chunk has used.
TEST(CommLargeCollectives, GatherAndSumChunkByChunk) {
  const Inputs large(test_hosts(3), at::kFloat, int64_t{5} << 19), small(test_hosts(3), at::kDouble, 77'777);
  run_thread_ranks(3, [&](int rank) {
    std::vector<ReducePlane> reduced;
    std::vector<GatherPlane> gathered;
    std::vector<at::Tensor> tensors;
    for (const auto* inputs : {&large, &small}) {
      reduced.push_back({at::empty({inputs->slice}, inputs->dtype), {{0, inputs->by_rank[rank]}}});
      gathered.push_back({at::empty_like(inputs->sum), reduced.back().output});
      tensors.push_back(inputs->by_rank[rank].clone());
    }
    all_ranks().reduce_scatter(reduced, 1.0, {"w"})->wait();
    all_ranks().all_gather(gathered, {"w"})->wait();
    all_ranks().all_reduce(tensors, ReduceOp::kSum, {"w"})->wait();
    for (const auto i : {0, 1}) {
      const auto& sum = (i == 0 ? large : small).sum;
      EXPECT_TRUE(gathered[i].output.equal(sum));
      EXPECT_TRUE(tensors[i].equal(sum));
    }
  });
}

TEST(CommLanes, MayRunInDifferentOrdersOnDifferentRanks) {
  run_thread_ranks(3, [](int rank) {
    auto group = default_process_group();
    for (int round = 0; round < 20; ++round) {
      const auto a = at::full({5003}, 1 << rank), b = at::full({77}, round << rank);
      std::shared_ptr<Work> first;
      const auto start_first = [&] { first = all_ranks().all_reduce(a, ReduceOp::kSum, {"a", {}}); };
      if (rank != 1) start_first();
      const auto second = group->reductions().all_reduce(b, ReduceOp::kSum, {"b", {}});
      if (rank == 1) {
        // All other ranks have started the first operation when `second` completes.
        second->wait();
        start_first();
      }
      first->wait();
      second->wait();
      EXPECT_TRUE(a.eq(7).all().item<bool>() && b.eq(7 * round).all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace fsdp::test
