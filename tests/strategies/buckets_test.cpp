// Tests that if every rank has all rows, gradients are reduced bucket by bucket while backward goes on.

#include "runtime/sharded_params.h"

#include <array>

#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using runtime::SlotRun;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::SizeIs;
using torch::Tensor;

struct Cut {
  const char* rule;
  std::vector<int64_t> bytes;
  int64_t last_cap, cap;
  std::vector<SlotRun> expected;
};

TEST(Buckets, AreCutByTheseRules) {
  const Cut cuts[] = {
      {"from the last slot, and that bucket is smaller", {10, 10, 10, 10, 10, 10}, 20, 30, {{0, 1}, {1, 4}, {4, 6}}},
      {"one slot that is larger than a bucket", {1, 50, 1, 50}, 10, 10, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}},
      {"the last bucket is no larger than the others", {10, 10, 10}, 100, 10, {{0, 1}, {1, 2}, {2, 3}}},
      {"no slot, no bucket", {}, 1, 1, {}}};
  for (const auto& [rule, bytes, last_cap, cap, expected] : cuts)
    EXPECT_EQ(runtime::cut_buckets(bytes, last_cap, cap), expected) << rule;
}

TEST(Buckets, GiveTheBitsOfOneReductionAndOfFullSharding) {
  for (const char* backend : {"shm", "gloo"}) {
    auto training = small_net_training();
    training.dtype = torch::kFloat;
    training.steps = 2;
    const auto sharded = train_on_thread_ranks(training, 3, {.backend = backend});
    for (const int64_t bytes : {1 << 30, 1000}) {  // a block has 3 kB
      training.shard = [=](SmallNetImpl& net) {
        return shard_over(placement_over({1, 3}), module_tree(net), {.bucket_cap_bytes = bytes});
      };
      expect_same_bits(sharded, train_on_thread_ranks(training, 3, {.backend = backend}));
    }
  }
}

// Four layers of 1 kB. Each one is a bucket.
struct Layers : torch::nn::Module {
  static constexpr int64_t kBytes = 128 * sizeof(double);
  Tensor first = layer("first", 2), second = layer("second", 3), once = layer("once", 4), last = layer("last", 5);

 private:
  Tensor layer(const char* name, double value) {
    return register_parameter(name, torch::full({128}, value, torch::kDouble));
  }
};

// The reductions of a backward through a chain of the four layers, and how many of them had begun when only the
// gradient of the chain's first layer was missing.
struct Sums {
  std::vector<OperationLog::Entry> all;
  size_t begun = 0;
};

Sums sums_of_chain(const std::array<Tensor Layers::*, 4>& chain) {
  const auto all = default_process_group(), alone = all->split({{0}, {1}}, "alone");
  const auto log = std::make_shared<OperationLog>();
  Layers net;
  const auto group =
      shard_over({all, alone, {test::recorded(*all, log)}}, module_tree(net), {.bucket_cap_bytes = Layers::kBytes});
  Sums sums;
  log->clear();
  backward(group, [&] {
    auto h = (net.*chain[0]).square();
    h.register_hook([&](const Tensor&) { sums.begun = log->entries("all_reduce(sum)").size(); });
    for (size_t i = 1; i < chain.size(); ++i) h = h * net.*chain[i];
    return h.sum();
  });
  sums.all = log->entries("all_reduce(sum)");
  EXPECT_EQ(group.stats().reductions, 4);
  return sums;
}

// Buckets keep their order, so they are reduced later if a model uses its parameters in another order.
TEST(Buckets, AreSummedWhileBackwardGoesOnWithoutWaitingForOneAnother) {
  const std::array<Tensor Layers::*, 4> in_order{&Layers::first, &Layers::second, &Layers::once, &Layers::last};
  const std::array<Tensor Layers::*, 4> reversed{&Layers::last, &Layers::once, &Layers::second, &Layers::first};
  for (const auto& [chain, begun] : {std::pair(in_order, 3u), {reversed, 0u}})
    run_thread_ranks(2, [&, chain = chain, begun = begun](int) {
      const auto sums = sums_of_chain(chain);
      EXPECT_EQ(sums.begun, begun);
      ASSERT_THAT(sums.all, SizeIs(4));
      // Each reduction moves the gradient, and the number of ranks that have one.
      EXPECT_THAT(sums.all, Each(Field(&OperationLog::Entry::bytes, Layers::kBytes + sizeof(float))));
      for (size_t bucket = 0; bucket < 4; ++bucket)
        EXPECT_THAT(sums.all[bucket].subject, HasSubstr(c10::str("(bucket ", bucket + 1, " of 4)")));
    });
}

TEST(Buckets, GiveAGradientEverywhereToWhatOneRankAloneUsedAndNoneToWhatNobodyDid) {
  run_thread_ranks(3, [](int rank) {
    Layers net;
    const auto group = shard_over(placement_over({1, 3}), module_tree(net), {.bucket_cap_bytes = Layers::kBytes});
    for (int step = 1; step <= 2; ++step) {  // the second step adds to the first one's gradients
      backward(group, [&] {
        const auto loss = (net.first * net.second).sum();
        return rank == 1 ? loss + net.once.sum() : loss;
      });
      for (const auto& [parameter, expected] :
           {std::pair(net.first, 3.0 * step), {net.second, 2.0 * step}, {net.once, step / 3.0}})
        expect_close(torch::full({128}, expected, torch::kDouble), full_grad(parameter), 1e-12);
      EXPECT_FALSE(net.last.grad().defined());
    }
  });
}

TEST(Buckets, OfNoBytesAreRefusedAndOfOthersOnOneRankAMismatch) {
  run_thread_ranks(2, [](int rank) {
    Layers net;
    const auto placement = placement_over({1, 2});
    EXPECT_THAT(message_of<UsageError>([&] { shard_over(placement, module_tree(net), {.bucket_cap_bytes = 0}); }),
                HasSubstr("bucket_cap_bytes"));
    EXPECT_THROW(shard_over(placement, module_tree(net), {.bucket_cap_bytes = 100 + rank}), Mismatch);
  });
}

}  // namespace
}  // namespace fsdp::test::strategies
