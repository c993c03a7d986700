// Ranks on several hosts, some of which have more than others.

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

at::Tensor random_values(int rank, int64_t numel) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(50 + rank));
  return at::randn({numel}, generator, at::kFloat);
}

class Hosts : public testing::TestWithParam<std::vector<int>> {
 protected:
  static int world_size() { return static_cast<int>(GetParam().size()); }
  // Every rank has another number of elements.
  static std::vector<int64_t> offsets_of(int64_t length) {
    std::vector<int64_t> offsets{0};
    for (int rank = 0; rank < world_size(); ++rank) offsets.push_back(offsets.back() + length * (rank + 1));
    return offsets;
  }
  static void run(const std::function<void(int rank, Communicator& all)>& fn) {
    run_thread_ranks(world_size(), [&](int rank) { fn(rank, default_process_group()->communicator()); },
                     {.backend = "hierarchical", .hosts = GetParam()});
  }
};

TEST_P(Hosts, GatherEverySlice) {
  run([](int rank, Communicator& all) {
    for (const int64_t length : {3, 10'000}) {
      const auto offsets = offsets_of(length);
      const auto expected = random_values(0, offsets.back());
      const auto output = at::zeros({offsets.back()});
      all.all_gather(output, expected.slice(0, offsets[rank], offsets[rank + 1]).clone(), offsets, {"w", {}})->wait();
      EXPECT_TRUE(output.equal(expected)) << "rank " << rank;
    }
  });
}

TEST_P(Hosts, SumInRankOrderAndThenInThatOfHosts) {
  run([](int rank, Communicator& all) {
    for (const int64_t length : {3, 10'000}) {
      const auto offsets = offsets_of(length);
      const auto sum = add_in_order<at::Tensor>(
          GetParam(), [&](int other) { return random_values(other, offsets.back()); },
          [](const auto& a, const auto& b) { return a + b; });
      const auto output = at::zeros({offsets[rank + 1] - offsets[rank]});
      all.reduce_scatter(output, {{0, random_values(rank, offsets.back())}}, offsets, 0.5, {"w", {}})->wait();
      EXPECT_TRUE(output.equal(sum.slice(0, offsets[rank], offsets[rank + 1]) * 0.5)) << "rank " << rank;
      const auto tensor = random_values(rank, offsets.back());
      all.all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
      EXPECT_TRUE(tensor.equal(sum)) << "rank " << rank;
    }
  });
}

TEST_P(Hosts, BroadcastFromEveryRoot) {
  run([](int rank, Communicator& all) {
    for (int root = 0; root < world_size(); ++root) {
      const auto tensor = random_values(rank, 1000);
      all.broadcast(tensor, root, {"w", {}})->wait();
      EXPECT_TRUE(tensor.equal(random_values(root, 1000))) << rank << " from " << root;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Grids, Hosts,
                         testing::Values(std::vector{0, 0, 1, 1}, std::vector{0, 0, 0, 1}, std::vector{0, 1, 1, 1},
                                         std::vector{0, 0, 1, 1, 2, 2}, std::vector{0, 0, 1, 2, 2, 2}));

TEST(AGroupOfOneHost, IsSplitOffOneOfSeveral) {
  run_thread_ranks(4,
                   [](int rank) {
                     const auto all = default_process_group();
                     EXPECT_THAT(all->hosts(), testing::ElementsAre(0, 0, 1, 1));
                     const auto host = all->split({{0, 1}, {2, 3}}, "host"),
                                across = all->split({{0, 2}, {1, 3}}, "across");
                     EXPECT_THAT(host->hosts(), testing::ElementsAre(0, 0));
                     EXPECT_THAT(across->hosts(), testing::ElementsAre(0, 1));
                     const auto tensor = at::full({1000}, static_cast<float>(1 << rank));
                     host->communicator().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
                     across->communicator().all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
                     EXPECT_TRUE(tensor.eq(15).all().item<bool>());
                   },
                   {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});
}

}  // namespace
}  // namespace fsdp::test
