// Tests which samples the ranks see: each one once, in equally many batches per rank, whose joined batch equals that of
// one rank.

#include <fsdp/error.h>
#include <fsdp/samplers.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>
#include <numeric>
#include <sstream>

#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using data::DistributedSampler;
using testing::ElementsAre;
using testing::UnorderedElementsAreArray;
using Samples = std::vector<size_t>;

Samples up_to(size_t size) {
  Samples samples(size);
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

Samples pass(DistributedSampler& sampler, size_t batch_size = 4) {
  Samples samples;
  sampler.reset();
  while (auto batch = sampler.next(batch_size)) {
    EXPECT_LE(batch->size(), batch_size);
    samples.insert(samples.end(), batch->begin(), batch->end());
  }
  return samples;
}

// Calls `make` on each rank, and returns the results in rank order.
template <class Make>
auto on_each_rank(int world, const Make& make) {
  std::vector<decltype(make())> results(static_cast<size_t>(world));
  std::mutex mutex;
  run_thread_ranks(world, [&](int rank) {
    auto result = make();
    const std::lock_guard lock(mutex);
    results[static_cast<size_t>(rank)] = std::move(result);
  });
  return results;
}

TEST(DistributedSampler, CountsEachSampleOnOneRankAndGivesAllRanksEquallyMany) {
  for (int world : {1, 2, 3, 4}) {
    for (size_t size : {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{12}}) {
      for (bool shuffle : {false, true}) {
        Samples counted;
        for (const auto& [samples, count] : on_each_rank(world, [&] {
               DistributedSampler sampler(size, {.shuffle = shuffle, .seed = 3});
               auto seen = pass(sampler);
               EXPECT_EQ(seen.size(), sampler.size());
               return std::pair(seen, sampler.counted());
             })) {
          EXPECT_EQ(samples.size(), (size + static_cast<size_t>(world) - 1) / static_cast<size_t>(world));
          EXPECT_LE(count, samples.size());
          EXPECT_THAT(samples, testing::Each(testing::Lt(size)));
          counted.insert(counted.end(), samples.begin(), samples.begin() + static_cast<ptrdiff_t>(count));
        }
        EXPECT_THAT(counted, UnorderedElementsAreArray(up_to(size))) << world << " ranks";
      }
    }
  }
}

TEST(DistributedSampler, TheRanksBatchesOfAStepAreTheJoinedBatchOfOneRank) {
  const auto steps_of = [](size_t batch_size) {
    DistributedSampler sampler(24, {.seed = 5});
    sampler.set_epoch(2);
    std::vector<Samples> steps;
    while (auto batch = sampler.next(batch_size)) steps.push_back(*batch);
    return steps;
  };
  const auto one = on_each_rank(1, [&] { return steps_of(8); })[0];
  const auto two = on_each_rank(2, [&] { return steps_of(4); });
  ASSERT_EQ(one.size(), 3U);
  for (size_t step = 0; step < one.size(); ++step) {
    Samples joined = two[0].at(step);
    joined.insert(joined.end(), two[1].at(step).begin(), two[1].at(step).end());
    EXPECT_THAT(joined, UnorderedElementsAreArray(one[step]));
  }
}

TEST(DistributedSampler, TheOrderIsThePermutationOfSeedAndEpochAsInPython) {
  on_each_rank(1, [] {
    DistributedSampler sampler(10, {.seed = 1});
    sampler.set_epoch(2);
    // The numbers are torch.randperm(10, generator=torch.Generator().manual_seed(3)) in PyTorch 2.13.
    EXPECT_THAT(pass(sampler), ElementsAre(6, 0, 3, 7, 8, 5, 1, 9, 2, 4));
    const auto again = pass(sampler);
    sampler.set_epoch(3);
    EXPECT_NE(pass(sampler), again);
    sampler.set_epoch(2);
    EXPECT_EQ(pass(sampler), again);
    return 0;
  });
}

TEST(DistributedSampler, GoesOnAfterLoadingWhereItWasSaved) {
  EXPECT_THROW(DistributedSampler(3), UsageError) << "without a process group";
  on_each_rank(2, [] {
    DistributedSampler sampler(20, {.seed = 7}), loaded(20, {.seed = 7});
    sampler.set_epoch(4);
    sampler.next(3);
    std::stringstream file;
    torch::serialize::OutputArchive out;
    sampler.save(out);
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    loaded.load(in);
    EXPECT_EQ(loaded.next(20), sampler.next(20));
    return 0;
  });
}

}  // namespace
}  // namespace fsdp::test
