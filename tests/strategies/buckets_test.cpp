// Ranks that all have all rows: their gradients are summed bucket by bucket while backward goes on.

#include "runtime/buckets.h"

#include <array>

#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using runtime::SlotBytes;
using runtime::SlotRun;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::SizeIs;
using torch::Tensor;

struct Cut {
  const char* rule;
  std::vector<SlotBytes> slots;
  int64_t first_cap, cap;
  std::vector<SlotRun> expected;
};

TEST(Buckets, AreCutByTheseRules) {
  const SlotBytes ten{10};
  const Cut cuts[] = {
      {"from the last slot, and the first bucket is smaller", std::vector(6, ten), 20, 30, {{4, 6}, {1, 4}, {0, 1}}},
      {"one slot that is larger than a bucket", {{1}, {50}, {1}, {50}}, 10, 10, {{3, 4}, {2, 3}, {1, 2}, {0, 1}}},
      {"the first bucket is no larger than the others", std::vector(3, ten), 100, 10, {{2, 3}, {1, 2}, {0, 1}}},
      {"none spans two buffers", {{1, 0}, {1, 0}, {1, 1}, {0, 1}}, 100, 100, {{2, 4}, {0, 2}}},
      {"no slot, no bucket", {}, 1, 1, {}}};
  for (const auto& [rule, slots, first_cap, cap, expected] : cuts)
    EXPECT_EQ(runtime::cut_buckets(slots, first_cap, cap), expected) << rule;
}

// All of the net in one group, over as many replicas as there are ranks. Of fp64 a block of SmallNet has 6 kB.
Training<SmallNetImpl> replicated(int world, int64_t bucket_cap_bytes = 1000) {
  auto training = small_net_training();
  training.shard = [=](SmallNetImpl& net) {
    return shard_over(placement_over({1, world}), module_tree(net), {.bucket_cap_bytes = bucket_cap_bytes});
  };
  training.steps = 3;
  return training;
}

TEST(Buckets, TrainAsTheUnshardedModelOnTheJoinedBatch) {
  for (const int world : {1, 2, 3}) expect_training_equals_unsharded(replicated(world), world);
  auto inside_one_another = replicated(2);
  inside_one_another.shard = [](SmallNetImpl& net) {
    return shard_blocks_over(placement_over({1, 2}), net, {.bucket_cap_bytes = 1000});
  };
  expect_training_equals_unsharded(inside_one_another, 2);
}

TEST(Buckets, GiveTheBitsOfOneReductionAndOfFullSharding) {
  for (const char* backend : {"shm", "gloo"}) {
    auto whole = small_net_training(), in_one = replicated(3, int64_t{1} << 30), cut = replicated(3);
    for (auto* training : {&whole, &in_one, &cut}) {
      training->dtype = torch::kFloat;
      training->steps = 2;
    }
    const auto expected = train_on_thread_ranks(whole, 3, {.backend = backend});
    expect_same_bits(expected, train_on_thread_ranks(in_one, 3, {.backend = backend}));
    expect_same_bits(expected, train_on_thread_ranks(cut, 3, {.backend = backend}));
  }
}

// Four layers of 1 kB, one bucket each.
struct Layers : torch::nn::Module {
  static constexpr int64_t kBytes = 128 * sizeof(double);
  Tensor first = layer("first", 2), second = layer("second", 3), once = layer("once", 4), last = layer("last", 5);

 private:
  Tensor layer(const char* name, double value) {
    return register_parameter(name, torch::full({128}, value, torch::kDouble));
  }
};

// The sums of a backward through a chain of the four, one bucket each, and how many of them had begun when all
// gradients but that of the chain's first had come.
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

void expect_four_in_order(const std::vector<OperationLog::Entry>& sums) {
  ASSERT_THAT(sums, SizeIs(4));
  EXPECT_THAT(sums, Each(Field(&OperationLog::Entry::bytes, Layers::kBytes)));
  for (size_t bucket = 0; bucket < sums.size(); ++bucket)
    EXPECT_THAT(sums[bucket].subject, HasSubstr(c10::str("(bucket ", bucket + 1, " of 4)")));
}

TEST(Buckets, AreSummedWhileBackwardGoesOnWithoutWaitingForOneAnother) {
  run_thread_ranks(2, [](int) {
    const auto sums = sums_of_chain({&Layers::first, &Layers::second, &Layers::once, &Layers::last});
    EXPECT_EQ(sums.begun, 3);
    expect_four_in_order(sums.all);
  });
}

TEST(Buckets, KeepTheirOrderAndBeginLaterWhereAModelUsesItsParametersInAnother) {
  run_thread_ranks(2, [](int) {
    const auto sums = sums_of_chain({&Layers::last, &Layers::once, &Layers::second, &Layers::first});
    EXPECT_EQ(sums.begun, 0);
    expect_four_in_order(sums.all);
  });
}

void expect_gradient(const Tensor& parameter, double expected) {
  expect_close(torch::full_like(full_tensor(parameter), expected), full_grad(parameter), 1e-12);
}

TEST(Buckets, GiveAGradientEverywhereToWhatOneRankAloneUsedAndNoneToWhatNobodyDid) {
  run_thread_ranks(3, [](int rank) {
    Layers net;
    const auto group = shard_over(placement_over({1, 3}), module_tree(net), {.bucket_cap_bytes = Layers::kBytes});
    for (int step = 1; step <= 2; ++step) {  // the second adds to what is there
      backward(group, [&] {
        const auto loss = (net.first * net.second).sum();
        return rank == 1 ? loss + net.once.sum() : loss;
      });
      expect_gradient(net.first, 3.0 * step);
      expect_gradient(net.second, 2.0 * step);
      expect_gradient(net.once, step / 3.0);
      EXPECT_FALSE(net.last.grad().defined());
    }
  });
}

TEST(Buckets, SumGradientsOfSeveralBackwardsAtOnceAfterNoSync) {
  run_thread_ranks(2, [](int rank) {
    Layers net;
    const auto group = shard_over(placement_over({1, 2}), module_tree(net), {.bucket_cap_bytes = Layers::kBytes});
    const auto backward_with = [&](double factor) {
      backward(group, [&] { return (net.first * net.second).sum() * factor; });
    };
    {
      const auto guard = group.no_sync();
      backward_with(1.0 + rank);
      backward_with(10.0);
    }
    EXPECT_FALSE(net.first.grad().defined());
    backward_with(100.0);
    expect_gradient(net.first, 3.0 * 111.5);
    EXPECT_EQ(group.stats().reductions, 4);
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
