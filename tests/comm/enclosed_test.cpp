// Collectives and messages so small that their data goes with the fingerprints: up to 256 bytes from one rank to
// another, and one element more. Bit for bit, and how many messages they take.

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <atomic>
#include <thread>

#include "comm/c10d/c10d_communicator.h"
#include "comm/c10d/gloo_backend.h"
#include "support/counting_backend.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kLimit = 256;

Communicator& small_ones() { return default_process_group()->communicator(); }

at::Tensor numbers(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(70 + rank));
  const auto values = at::randn({numel}, generator, at::kFloat).mul_(1 << (3 * rank % 9));
  return dtype == at::kBool ? values > 0 : values.to(dtype);
}

at::Tensor reduced(int world, int64_t numel, at::ScalarType dtype, ReduceOp op) {
  return add_in_order<at::Tensor>(
      test_hosts(world), [&](int rank) { return numbers(rank, numel, dtype); },
      [op](const auto& a, const auto& b) {
        return op == ReduceOp::kSum ? a + b : op == ReduceOp::kMax ? at::maximum(a, b) : at::minimum(a, b);
      });
}

// Nothing, one element, just as much as can be enclosed, and one element more.
std::vector<int64_t> sizes_about_the_limit(at::ScalarType dtype) {
  const int64_t most = kLimit / static_cast<int64_t>(c10::elementSize(dtype));
  return {0, 1, most, most + 1};
}

// Every rank has `largest`; or the last one has it and the others have less, some of them nothing.
std::vector<std::vector<int64_t>> partitions(int world, int64_t largest) {
  std::vector<int64_t> even{0}, uneven{0};
  for (int rank = 0; rank < world; ++rank) {
    even.push_back(even.back() + largest);
    const int64_t shares[] = {0, largest / 2, std::min<int64_t>(largest, 1)};
    uneven.push_back(uneven.back() + (rank == world - 1 ? largest : shares[rank % 3]));
  }
  return {even, uneven};
}

at::Tensor of_rank(const at::Tensor& flat, const std::vector<int64_t>& offsets, int rank) {
  return flat.slice(0, offsets[rank], offsets[rank + 1]);
}

std::string about(int rank, int64_t numel, at::ScalarType dtype) {
  return c10::str("rank ", rank, ", ", numel, " of ", dtype);
}

class SmallCollectives : public testing::TestWithParam<int> {
 protected:
  static int world() { return GetParam(); }
};

TEST_P(SmallCollectives, GatherOnBothSidesOfTheLimit) {
  run_thread_ranks(world(), [](int rank) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
      for (const int64_t size : sizes_about_the_limit(dtype)) {
        for (const auto& offsets : partitions(world(), size)) {
          const auto expected = numbers(1, offsets.back(), dtype);
          const auto output = at::zeros({offsets.back()}, dtype);
          small_ones().all_gather(output, of_rank(expected, offsets, rank).clone(), offsets, {"w", {}})->wait();
          EXPECT_TRUE(output.equal(expected)) << about(rank, size, dtype);
          const auto in_place = at::zeros({offsets.back()}, dtype), own = of_rank(in_place, offsets, rank);
          own.copy_(of_rank(expected, offsets, rank));
          small_ones().all_gather(in_place, own, offsets, {"w", {}})->wait();
          EXPECT_TRUE(in_place.equal(expected)) << about(rank, size, dtype) << ", in place";
        }
      }
    }
  });
}

TEST_P(SmallCollectives, ReduceInRankOrderOnBothSidesOfTheLimit) {
  run_thread_ranks(world(), [](int rank) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const int64_t size : sizes_about_the_limit(dtype)) {
        for (const auto& offsets : partitions(world(), size)) {
          const auto input = numbers(rank, offsets.back(), dtype);
          const auto output = at::full({offsets[rank + 1] - offsets[rank]}, -1.0, dtype);
          small_ones().reduce_scatter(output, {{0, input}}, offsets, 0.5, {"w", {}})->wait();
          const auto expected = reduced(world(), offsets.back(), dtype, ReduceOp::kSum).mul_(0.5);
          EXPECT_TRUE(output.equal(of_rank(expected, offsets, rank))) << about(rank, size, dtype);
          EXPECT_TRUE(input.equal(numbers(rank, offsets.back(), dtype))) << "the input changed";
        }
      }
    }
  });
}

TEST_P(SmallCollectives, AllReduceByEveryOperationOnBothSidesOfTheLimit) {
  run_thread_ranks(world(), [](int rank) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kInt, at::kBool}) {
      for (const int64_t size : sizes_about_the_limit(dtype)) {
        for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
          const auto tensor = numbers(rank, size, dtype);
          small_ones().all_reduce(tensor, op, {"w", {}})->wait();
          EXPECT_TRUE(tensor.equal(reduced(world(), size, dtype, op))) << about(rank, size, dtype);
        }
      }
    }
  });
}

// The first numbers of the larger ones are the smaller ones.
TEST_P(SmallCollectives, HaveTheBitsOfLargeOnes) {
  run_thread_ranks(world(), [](int rank) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto large = at::cat({numbers(rank, 30, dtype), numbers(rank, 9000, dtype)}),
                 small = large.narrow(0, 0, 30).clone();
      for (const auto& tensor : {large, small}) small_ones().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
      EXPECT_TRUE(small.equal(large.narrow(0, 0, 30))) << about(rank, 30, dtype);
    }
  });
}

TEST_P(SmallCollectives, BroadcastOnBothSidesOfTheLimit) {
  run_thread_ranks(world(), [](int rank) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kBool}) {
      for (const int64_t size : sizes_about_the_limit(dtype)) {
        for (int root = 0; root < world(); ++root) {
          const auto tensor = numbers(rank, size, dtype);
          small_ones().broadcast(tensor, root, {"w", {}})->wait();
          EXPECT_TRUE(tensor.equal(numbers(root, size, dtype))) << about(rank, size, dtype) << " from " << root;
        }
      }
    }
  });
}

TEST_P(SmallCollectives, CarryVotesAndWriteNothingWhenVotedDown) {
  run_thread_ranks(world(), [](int rank) {
    // 641 votes do not fit into the fingerprint.
    for (const size_t count : {size_t{1}, size_t{3}, size_t{641}}) {
      for (const bool somebody : {true, false}) {
        std::vector<uint8_t> votes(count);
        if (somebody && rank == world() - 1) votes.back() = 1;
        const auto tensor = at::full({7}, rank + 1.0);
        const auto work = small_ones().all_reduce(tensor, ReduceOp::kSum, {"w", votes});
        work->wait();
        EXPECT_EQ(work->votes().back(), somebody);
        const double sum = world() * (world() + 1) / 2.0;
        EXPECT_TRUE(tensor.eq(somebody ? sum : rank + 1.0).all().item<bool>()) << count << " votes";
      }
    }
  });
}

// Each is prepared while others are in flight, and what arrived for one stays until it is done.
TEST_P(SmallCollectives, TakeTurnsWithLargeOnesWhileManyAreInFlight) {
  constexpr std::array<int64_t, 5> kSizes{1, 64, 65, 0, 5000};
  run_thread_ranks(world(), [&](int rank) {
    std::vector<at::Tensor> sums, gathered;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 60; ++i) {
      const int64_t numel = kSizes[static_cast<size_t>(i) % kSizes.size()];
      sums.push_back(at::full({numel}, static_cast<float>(i + rank)));
      works.push_back(small_ones().all_reduce(sums.back(), ReduceOp::kSum, {"sum", {}}));
      gathered.push_back(at::zeros({numel * world()}));
      const auto offsets = partitions(world(), numel).front();
      works.push_back(small_ones().all_gather(gathered.back(), at::full({numel}, static_cast<float>(100 * i + rank)),
                                              offsets, {"gather", {}}));
    }
    for (const auto& work : works) work->wait();
    for (int i = 0; i < 60; ++i) {
      EXPECT_TRUE(sums[i].eq(world() * i + world() * (world() - 1) / 2).all().item<bool>()) << i;
      const auto expected = (at::arange(world(), at::kFloat) + 100 * i).repeat_interleave(sums[i].numel());
      EXPECT_TRUE(gathered[i].equal(expected)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SmallCollectives, testing::Values(1, 2, 3, 4, 8));

// Over shared memory the start throws already, so it gives the output by `output`.
void expect_mismatch(const std::function<std::shared_ptr<Work>(int rank, at::Tensor& output)>& start,
                     const std::string& difference) {
  std::atomic<int> found = 0;
  run_thread_ranks(2, [&](int rank) {
    at::Tensor output;
    try {
      start(rank, output)->wait();
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr(difference));
      ++found;
    }
    EXPECT_TRUE(output.eq(-1).all().item<bool>()) << "rank " << rank << " has data of another collective";
  });
  EXPECT_EQ(found, 2);
}

TEST(SmallAgainstLarge, IsAMismatchOnBothRanksThatWritesNothing) {
  expect_mismatch(
      [](int rank, at::Tensor& output) {
        output = at::full({rank == 0 ? 64 : 65}, -1.0f);
        return small_ones().all_reduce(output, ReduceOp::kSum, {"w", {}});
      },
      "256 bytes");
}

TEST(SmallPartsThatDiffer, AreAMismatchOnBothRanksThatWritesNothing) {
  expect_mismatch(
      [](int rank, at::Tensor& output) {
        const std::vector<int64_t> offsets{0, rank + 5, 20};
        output = at::full({20}, -1.0f);
        return small_ones().all_gather(output, at::ones({offsets[rank + 1] - offsets[rank]}), offsets, {"w", {}});
      },
      "boundaries of the ranks' slices");
}

TEST(SmallMessageAgainstALarge, IsAMismatchOnBothRanksThatWritesNothing) {
  expect_mismatch(
      [](int rank, at::Tensor& output) {
        output = at::full({rank == 0 ? 1 : 1000}, -1.0f);
        return rank == 0 ? small_ones().send(output, 1, {"w", {}}) : small_ones().recv(output, 0, {"w", {}});
      },
      "4000 bytes");
}

using Start = std::function<std::shared_ptr<Work>(Communicator& ranks)>;

// How many messages each of 3 ranks sends, by rank.
std::vector<int> messages_of(const Start& start) {
  constexpr int kWorld = 3;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> counts(kWorld);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      const auto made = std::make_shared<CountingBackend::Counts>();
      C10dOptions options;
      options.ranks = {rank, kWorld};
      options.timeout = std::chrono::seconds(60);
      options.control = [made](const auto& keys, int own_rank, int size, auto timeout) {
        return c10::make_intrusive<CountingBackend>(make_gloo_backend(keys, own_rank, size, timeout, "127.0.0.1"),
                                                    made);
      };
      const auto ranks = make_c10d_communicator(store, std::move(options));
      ranks->barrier({})->wait();
      const int before = made->sends;
      start(*ranks)->wait();
      counts[static_cast<size_t>(rank)] = made->sends - before;
      ranks->barrier({})->wait();
    });
  }
  for (auto& thread : threads) thread.join();
  return counts;
}

TEST(ASmallCollective, TakesOneMessageToEachPeer) {
  const auto gather = [](int64_t numel) {
    return messages_of([numel](Communicator& ranks) {
      const std::vector<int64_t> offsets{0, numel, 2 * numel, 3 * numel};
      return ranks.all_gather(at::empty({3 * numel}), at::ones({numel}), offsets, {"w", {}});
    });
  };
  const auto reduce_scatter = [](int64_t numel) {
    return messages_of([numel](Communicator& ranks) {
      const std::vector<int64_t> offsets{0, numel, 2 * numel, 3 * numel};
      return ranks.reduce_scatter(at::empty({numel}), at::ones({3 * numel}), offsets, {"w", {}});
    });
  };
  const auto all_reduce = [](int64_t numel) {
    return messages_of(
        [numel](Communicator& ranks) { return ranks.all_reduce(at::ones({numel}), ReduceOp::kSum, {"w", {}}); });
  };
  const auto broadcast = [](int64_t numel) {
    return messages_of([numel](Communicator& ranks) { return ranks.broadcast(at::ones({numel}), 0, {"w", {}}); });
  };
  EXPECT_THAT(gather(64), Each(2));
  EXPECT_THAT(gather(65), Each(4));
  EXPECT_THAT(reduce_scatter(64), Each(2));
  EXPECT_THAT(reduce_scatter(65), Each(4));
  EXPECT_THAT(all_reduce(64), Each(2));
  EXPECT_THAT(all_reduce(65), Each(6));
  EXPECT_THAT(broadcast(64), ElementsAre(2, 2, 2));
  EXPECT_THAT(broadcast(65), ElementsAre(4, 2, 2));
}

TEST(ASmallMessage, TakesOneEachWay) {
  const auto ring = [](int64_t numel) {
    return messages_of([numel](Communicator& ranks) {
      const int next = (ranks.rank() + 1) % 3, previous = (ranks.rank() + 2) % 3;
      return ranks.send_recv(at::ones({numel}), next, at::empty({numel}), previous, {"w", {}});
    });
  };
  // A fingerprint to each neighbour, and the data.
  EXPECT_THAT(ring(64), Each(2));
  EXPECT_THAT(ring(65), Each(3));
}

}  // namespace
}  // namespace fsdp::test
