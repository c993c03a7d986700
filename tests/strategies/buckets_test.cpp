// Ranks that all have all rows: their gradients are summed bucket by bucket while backward goes on.

#include <gmock/gmock.h>

#include <array>

#include "support/axes.h"
#include "support/recorded_ranks.h"
#include "support/small_net.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::SizeIs;
using torch::Tensor;

// Of fp64 a block of SmallNet has 6 kB.
constexpr int64_t kSmallBytes = 1000;

// All of the net in one group, over as many replicas as there are ranks.
Training<SmallNetImpl> replicated(int world, int64_t bucket_cap_bytes = kSmallBytes) {
  auto training = small_net_training();
  training.shard = [=](SmallNetImpl& net) {
    return shard_over(placement_over({1, world}), module_tree(net), {.bucket_cap_bytes = bucket_cap_bytes});
  };
  return training;
}

TEST(Buckets, TrainAsTheUnshardedModelOnTheJoinedBatch) {
  for (const int world : {1, 2, 3, 4}) expect_training_equals_unsharded(replicated(world), world);
}

TEST(Buckets, OfGroupsInsideOneAnotherTrainAsTheUnshardedModel) {
  auto training = replicated(2);
  training.shard = [](SmallNetImpl& net) {
    const auto placement = placement_over({1, 2});
    for (auto& block : *net.blocks) shard_over(placement, module_tree(*block), {.bucket_cap_bytes = kSmallBytes});
    return shard_over(placement, module_tree(net), {.bucket_cap_bytes = kSmallBytes});
  };
  expect_training_equals_unsharded(training, 2);
}

TEST(Buckets, GiveTheBitsOfOneReductionAndOfFullSharding) {
  for (const char* backend : {"shm", "gloo"}) {
    auto whole = small_net_training(), in_one = replicated(3, int64_t{1} << 30), cut = replicated(3);
    for (auto* training : {&whole, &in_one, &cut}) training->dtype = torch::kFloat;
    const auto expected = train_on_thread_ranks(whole, 3, {.backend = backend});
    expect_same_bits(expected, train_on_thread_ranks(in_one, 3, {.backend = backend}));
    expect_same_bits(expected, train_on_thread_ranks(cut, 3, {.backend = backend}));
  }
}

// Three layers of 1 kB, one bucket each; `last` is read by no loss, `once` by one rank's alone.
struct Layers : nn::Module {
  Tensor first = register_parameter("first", torch::full({128}, 2.0, torch::kDouble)),
         second = register_parameter("second", torch::full({128}, 3.0, torch::kDouble)),
         once = register_parameter("once", torch::full({128}, 4.0, torch::kDouble)),
         last = register_parameter("last", torch::full({128}, 5.0, torch::kDouble));
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
      shard_over({all, alone, {recorded(*all, log)}}, module_tree(net), {.bucket_cap_bytes = 128 * sizeof(double)});
  Sums sums;
  Tensor loss;
  {
    const ForwardScope scope(group);
    auto h = (net.*chain[0]).square();
    h.register_hook([&](const Tensor&) { sums.begun = log->entries("all_reduce(sum)").size(); });
    for (size_t i = 1; i < chain.size(); ++i) h = h * net.*chain[i];
    loss = h.sum();
  }
  log->clear();
  loss.backward();
  sums.all = log->entries("all_reduce(sum)");
  EXPECT_EQ(group.stats().reductions, 4);
  return sums;
}

void expect_four_in_order(const std::vector<OperationLog::Entry>& sums) {
  ASSERT_THAT(sums, SizeIs(4));
  EXPECT_THAT(sums, Each(Field(&OperationLog::Entry::bytes, 128 * sizeof(double))));
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

TEST(Buckets, GiveAGradientEverywhereToWhatOneRankAloneUsedAndNoneToWhatNobodyDid) {
  run_thread_ranks(3, [](int rank) {
    Layers net;
    const auto group = shard_over(placement_over({1, 3}), module_tree(net), {.bucket_cap_bytes = 128 * sizeof(double)});
    for (int step = 1; step <= 2; ++step) {  // the second adds to what is there
      Tensor loss;
      {
        const ForwardScope scope(group);
        loss = (net.first * net.second).sum();
        if (rank == 1) loss = loss + net.once.sum();
      }
      loss.backward();
      EXPECT_TRUE(full_grad(net.first).allclose(torch::full({128}, 3.0 * step, torch::kDouble)));
      EXPECT_TRUE(full_grad(net.second).allclose(torch::full({128}, 2.0 * step, torch::kDouble)));
      EXPECT_TRUE(full_grad(net.once).allclose(torch::full({128}, step / 3.0, torch::kDouble)));
      EXPECT_FALSE(net.last.grad().defined());
    }
  });
}

TEST(Buckets, SumGradientsOfSeveralBackwardsAtOnceAfterNoSync) {
  run_thread_ranks(2, [](int rank) {
    Layers net;
    const auto group = shard_over(placement_over({1, 2}), module_tree(net), {.bucket_cap_bytes = 128 * sizeof(double)});
    const auto backward = [&](double factor) {
      Tensor loss;
      {
        const ForwardScope scope(group);
        loss = (net.first * net.second).sum() * factor;
      }
      loss.backward();
    };
    {
      const auto guard = group.no_sync();
      backward(1.0 + rank);
      backward(10.0);
    }
    EXPECT_FALSE(net.first.grad().defined());
    backward(100.0);
    EXPECT_TRUE(full_grad(net.first).allclose(torch::full({128}, 3.0 * 111.5, torch::kDouble)));
    EXPECT_EQ(group.stats().reductions, 4);
  });
}

TEST(Buckets, OfNoBytesAreRefusedAndOfOthersOnOneRankAMismatch) {
  run_thread_ranks(2, [](int rank) {
    Layers net;
    const auto placement = placement_over({1, 2});
    try {
      shard_over(placement, module_tree(net), {.bucket_cap_bytes = 0});
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("bucket_cap_bytes"));
    }
    EXPECT_THROW(shard_over(placement, module_tree(net), {.bucket_cap_bytes = 100 + rank}), Mismatch);
  });
}

}  // namespace
}  // namespace fsdp::test
