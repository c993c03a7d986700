// Every collective against a sequential oracle, bit for bit.

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>
#include <tuple>

#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

at::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + rank));
  return at::randn({numel}, generator, at::kFloat).mul_(1 << (3 * rank % 9)).to(dtype);
}

at::Tensor sum_in_rank_order(int world_size, int64_t numel, at::ScalarType dtype) {
  return add_in_order<at::Tensor>(
      test_hosts(world_size), [&](int rank) { return values_of(rank, numel, dtype); },
      [](const auto& a, const auto& b) { return a + b; });
}

std::vector<int64_t> even(int64_t numel, int world_size) {
  std::vector<int64_t> offsets;
  for (int rank = 0; rank <= world_size; ++rank) offsets.push_back(numel * rank / world_size);
  return offsets;
}

// Rank 0 has nothing, rank 1 a single element, the last rank whatever is left.
std::vector<int64_t> lopsided(int64_t numel, int world_size) {
  std::vector<int64_t> offsets{0};
  for (int rank = 0; rank < world_size; ++rank) {
    const int64_t length = std::min<int64_t>(rank == 0 ? 0 : int64_t{1} << (3 * (rank - 1)), numel - offsets.back());
    offsets.push_back(rank == world_size - 1 ? numel : offsets.back() + length);
  }
  return offsets;
}

at::Tensor part_of(const at::Tensor& flat, const std::vector<int64_t>& offsets, int rank) {
  return flat.slice(0, offsets[rank], offsets[rank + 1]);
}

Communicator& communicator() { return default_process_group()->communicator(); }

class Collectives : public testing::TestWithParam<int> {
 protected:
  static constexpr std::array<int64_t, 5> kSizes{0, 1, 7, 1009, 1'000'000};
  int world_size() const { return GetParam(); }
};

TEST_P(Collectives, AllGatherPutsEveryPartAtItsOffset) {
  run_thread_ranks(world_size(), [&](int rank) {
    for (const int64_t numel : kSizes) {
      for (const auto& offsets : {even(numel, world_size()), lopsided(numel, world_size())}) {
        const at::Tensor expected = values_of(0, numel, at::kFloat);
        const at::Tensor input = part_of(expected, offsets, rank).clone();
        const at::Tensor output = at::full({numel}, -1.0f);
        communicator().all_gather(output, input, offsets, {"w", {}})->wait();
        EXPECT_TRUE(output.equal(expected)) << "rank " << rank << ", " << numel << " elements";
      }
    }
  });
}

TEST_P(Collectives, AllGatherTakesThePartThatLiesInTheOutput) {
  run_thread_ranks(world_size(), [&](int rank) {
    for (const auto& offsets : {even(1009, world_size()), lopsided(1009, world_size())}) {
      const at::Tensor expected = values_of(0, 1009, at::kDouble);
      const at::Tensor output = at::full({1009}, -1.0, at::kDouble);
      const at::Tensor own = part_of(output, offsets, rank);
      own.copy_(part_of(expected, offsets, rank));
      communicator().all_gather(output, own, offsets, {"w", {}})->wait();
      EXPECT_TRUE(output.equal(expected)) << "rank " << rank;
    }
  });
}

TEST_P(Collectives, ReduceScatterSumsInRankOrder) {
  run_thread_ranks(world_size(), [&](int rank) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const int64_t numel : kSizes) {
        for (const auto& offsets : {even(numel, world_size()), lopsided(numel, world_size())}) {
          const at::Tensor input = values_of(rank, numel, dtype);
          const at::Tensor output = at::full({offsets[rank + 1] - offsets[rank]}, -1.0, dtype);
          communicator().reduce_scatter(output, input, offsets, {"w", {}})->wait();
          const at::Tensor expected = part_of(sum_in_rank_order(world_size(), numel, dtype), offsets, rank);
          EXPECT_TRUE(output.equal(expected)) << "rank " << rank << ", " << numel << " of " << dtype;
          EXPECT_TRUE(input.equal(values_of(rank, numel, dtype))) << "the input changed";
        }
      }
    }
  });
}

TEST_P(Collectives, ReduceScatterMultipliesLowPrecisionByTheScaleItself) {
  const double scale = 1.0 / 3;  // 0.19 % larger in bf16
  run_thread_ranks(world_size(), [&](int rank) {
    for (const int64_t numel : kSizes) {
      const auto offsets = even(numel, world_size());
      const at::Tensor input = values_of(rank, numel, at::kBFloat16), output = part_of(input, offsets, rank).clone();
      communicator().reduce_scatter(output, {{0, input}}, offsets, scale, {"w", {}})->wait();
      const at::Tensor sum = part_of(sum_in_rank_order(world_size(), numel, at::kBFloat16), offsets, rank);
      EXPECT_TRUE(output.equal((sum.to(at::kDouble) * scale).to(at::kBFloat16))) << "rank " << rank << ", " << numel;
    }
  });
}

TEST_P(Collectives, ReduceScatterOfSeveralPiecesSumsInRankOrder) {
  // More than two pieces per peer (4 MiB at most), so that pieces are received into memory used before.
  const int64_t numel = int64_t{7} << 20;
  run_thread_ranks(std::min(world_size(), 3), [&](int rank) {
    const int world = fsdp::world_size();
    const auto offsets = lopsided(numel, world);
    const at::Tensor output = at::empty({offsets[rank + 1] - offsets[rank]});
    communicator().reduce_scatter(output, values_of(rank, numel, at::kFloat), offsets, {"w", {}})->wait();
    EXPECT_TRUE(output.equal(part_of(sum_in_rank_order(world, numel, at::kFloat), offsets, rank)));
  });
}

TEST_P(Collectives, AllReduceHasTheBitsOfTheSumInRankOrder) {
  run_thread_ranks(world_size(), [&](int rank) {
    for (const int64_t numel : kSizes) {
      const at::Tensor tensor = values_of(rank, numel, at::kFloat);
      communicator().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
      EXPECT_TRUE(tensor.equal(sum_in_rank_order(world_size(), numel, at::kFloat)))
          << "rank " << rank << ", " << numel << " elements";
    }
  });
}

TEST_P(Collectives, AllReduceFindsMaximumAndMinimumOfIntegersToo) {
  run_thread_ranks(world_size(), [&](int rank) {
    const at::Tensor highest = at::arange(10).view({2, 5}) + rank;
    communicator().all_reduce(highest, ReduceOp::kMax, {"max", {}})->wait();
    EXPECT_TRUE(highest.equal(at::arange(10).view({2, 5}) + (world_size() - 1)));
    const at::Tensor lowest = values_of(rank, 1009, at::kDouble);
    communicator().all_reduce(lowest, ReduceOp::kMin, {"min", {}})->wait();
    at::Tensor expected = values_of(0, 1009, at::kDouble);
    for (int r = 1; r < world_size(); ++r) {
      expected = at::minimum(expected, values_of(r, 1009, at::kDouble));
    }
    EXPECT_TRUE(lowest.equal(expected));
  });
}

TEST_P(Collectives, BroadcastReachesEveryRankFromEveryRoot) {
  run_thread_ranks(world_size(), [&](int rank) {
    for (int root = 0; root < world_size(); ++root) {
      for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{1009}}) {
        const at::Tensor tensor = values_of(rank, numel, at::kFloat);
        communicator().broadcast(tensor, root, {"w", {}})->wait();
        EXPECT_TRUE(tensor.equal(values_of(root, numel, at::kFloat))) << rank << " from " << root;
      }
    }
  });
}

class Messages : public Collectives {};

TEST_P(Messages, PassATensorRoundTheRing) {
  run_thread_ranks(world_size(), [&](int rank) {
    const at::Tensor token = at::zeros({17});
    const int next = (rank + 1) % world_size(), previous = (rank + world_size() - 1) % world_size();
    if (rank == 0) communicator().send(token.add_(1), next, {"token", {}})->wait();
    communicator().recv(token, previous, {"token", {}})->wait();
    if (rank != 0) communicator().send(token.add_(1), next, {"token", {}})->wait();
    EXPECT_EQ(token[3].item<float>(), static_cast<float>(rank == 0 ? world_size() : rank + 1));
    communicator().barrier({})->wait();
  });
}

TEST_P(Collectives, VotesAreTheOrOverAllRanks) {
  run_thread_ranks(world_size(), [&](int rank) {
    // 641 votes do not fit into the fingerprint any more.
    for (const size_t count : {size_t{0}, size_t{1}, size_t{9}, size_t{640}, size_t{641}}) {
      std::vector<uint8_t> votes(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        votes[i] = static_cast<int>(i % 11) == rank;
        expected[i] = static_cast<int>(i % 11) < world_size();
      }
      const auto work = communicator().barrier({"votes", votes});
      work->wait();
      const auto found = work->votes();
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin(), expected.end()));
    }
  });
}

TEST_P(Collectives, TwoRunsGiveTheSameBits) {
  std::vector<at::Tensor> runs(2);
  for (auto& run : runs) {
    run_thread_ranks(world_size(), [&](int rank) {
      const at::Tensor tensor = values_of(rank, 100'003, at::kFloat);
      communicator().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
      if (rank == 0) run = tensor;
    });
  }
  EXPECT_TRUE(runs[0].equal(runs[1]));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 4, 8));
INSTANTIATE_TEST_SUITE_P(Ranks, Messages, testing::Values(2, 3, 4, 8));

TEST(Lanes, MayRunInDifferentOrdersOnDifferentRanks) {
  run_thread_ranks(3, [](int rank) {
    auto group = default_process_group();
    for (int round = 0; round < 20; ++round) {
      const at::Tensor a = values_of(rank, 5003, at::kFloat), b = values_of(rank, 77, at::kFloat);
      std::shared_ptr<Work> first, second;
      const auto start_first = [&] { first = group->communicator().all_reduce(a, ReduceOp::kSum, {"a", {}}); };
      if (rank != 1) start_first();
      second = group->reductions().all_reduce(b, ReduceOp::kSum, {"b", {}});
      if (rank == 1) {
        // Not even started here yet, and all others have.
        second->wait();
        start_first();
      }
      first->wait();
      second->wait();
      EXPECT_TRUE(a.equal(sum_in_rank_order(3, 5003, at::kFloat)));
      EXPECT_TRUE(b.equal(sum_in_rank_order(3, 77, at::kFloat)));
    }
  });
}

TEST(Lanes, RunManyCollectivesInFlightInOrder) {
  run_thread_ranks(2, [](int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 100; ++i) {
      tensors.push_back(at::full({1000 + i}, static_cast<float>(i + rank)));
      works.push_back(communicator().all_reduce(tensors.back(), ReduceOp::kSum, {c10::str("t", i), {}}));
    }
    for (int i = 99; i >= 0; --i) {
      works[i]->wait();
      EXPECT_TRUE(tensors[i].eq(2 * i + 1).all().item<bool>()) << i;
    }
  });
}

TEST_P(Collectives, WhatFollowsThemIsCalledInTheirOrderBeforeTheyAreWaitedFor) {
  run_thread_ranks(world_size(), [&](int rank) {
    std::vector<int> order;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(communicator().barrier({c10::str("b", i), {static_cast<uint8_t>(rank == 0), 0}}));
      works.back()->then([&, i](std::span<const uint8_t> votes) {
        EXPECT_THAT(votes, testing::ElementsAre(1, 0));
        order.push_back(i);
      });
    }
    works.back()->wait();
    EXPECT_THAT(order, testing::SizeIs(20));
    EXPECT_TRUE(std::ranges::is_sorted(order));
    const auto over = communicator().barrier({});
    over->wait();
    over->then([&](std::span<const uint8_t>) { order.clear(); });
    EXPECT_THAT(order, testing::IsEmpty());
  });
}

TEST_P(Collectives, WhatFollowsOneOfManyRoundsComesWhileNoThreadOfTheRankComesBy) {
  constexpr int64_t kNumel = int64_t{3} << 20;
  run_thread_ranks(world_size(), [&](int rank) {
    const auto offsets = even(kNumel, world_size());
    const auto sum = at::zeros({offsets[rank + 1] - offsets[rank]});
    std::promise<void> followed;
    const auto work = communicator().reduce_scatter(sum, at::full({kNumel}, rank + 1.0), offsets, {"sum", {}});
    work->then([&](std::span<const uint8_t>) { followed.set_value(); });
    ASSERT_EQ(followed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    work->wait();
    EXPECT_TRUE(sum.eq(world_size() * (world_size() + 1) / 2).all().item<bool>());
  });
}

TEST(ACollectiveThatFails, IsFollowedByNothing) {
  run_thread_ranks(2, [](int rank) {
    bool is_followed = false;
    EXPECT_THROW(
        {
          const auto work = communicator().barrier({c10::str("rank ", rank), {}});
          work->then([&](std::span<const uint8_t>) { is_followed = true; });
          work->wait();
        },
        Mismatch);
    EXPECT_FALSE(is_followed);
  });
}

}  // namespace
}  // namespace fsdp::test
