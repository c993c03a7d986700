// Micro-batches whose gradients stay within the replica until the last one.

#include <gmock/gmock.h>

#include "support/axes.h"
#include "support/recorded_ranks.h"
#include "strategies/micro_batches.h"

namespace fsdp::test::micro_batches {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

TEST(RequiresAllReduce, InTheLastMicroBatchAloneEqualsTheUnshardedRun) {
  for (const auto& run : kRuns)
    expect_micro_batches_equal_the_unsharded_run(
        run, [](const Group& group, int micro) { group.set_requires_all_reduce(micro == 2); });
}

// Whole gradients of the second micro-batch wait beside what is kept of the first.
TEST(RequiresAllReduce, MixesWithBackwardsThatKeepWholeGradients) {
  expect_micro_batches_equal_the_unsharded_run({Strategy::kFullShard, {2, 2}}, [](const Group& group, int micro) {
    group.set_requires_all_reduce(micro == 2);
    group.set_requires_gradient_sync(micro != 1);
  });
}

TEST(RequiresAllReduce, OfSomeGroupsEqualsTheUnshardedRun) {
  expect_micro_batches_equal_the_unsharded_run({Strategy::kFullShard, {2, 2}}, [](const Group& group, int micro) {
    group.set_requires_all_reduce(micro == 2, /*recurse=*/false);
  });
}

TEST(RequiresAllReduce, SumsWhatWasKeptWithTheOwnersGradientAndDividesOnce) {
  constexpr int kShards = 2, kReplicas = 2;
  run_thread_ranks(4, [&](int rank) {
    OneWeight net;
    const auto group = shard_over(placement_over({kShards, kReplicas}), module_tree(net), {});
    group.set_gradient_divide_factor(3);
    for (int micro = 0; micro < 3; ++micro) {
      group.set_requires_all_reduce(micro == 2);
      backward_of(group, net, gradient_of(rank, micro));
    }
    const auto rows = local_rows(net.weight);
    Tensor expected;
    for (int replica = 0; replica < kReplicas; ++replica) {
      Tensor kept;  // of this rank's rows
      for (int micro = 0; micro < 3; ++micro) {
        Tensor sum;
        for (int shard = 0; shard < kShards; ++shard) {
          auto given = gradient_of(replica * kShards + shard, micro).narrow(0, rows.first, rows.count);
          if (kept.defined() && shard == rank % kShards) given = kept + given;
          sum = sum.defined() ? sum + given : given;
        }
        kept = sum;
      }
      expected = expected.defined() ? expected + kept : kept;
    }
    EXPECT_TRUE(torch::equal(net.weight.grad().clone(), expected * torch::scalar_tensor(1.0 / 3, torch::kDouble)));
  });
}

// Each is used once in three micro-batches, by one rank alone.
struct UsedOnce : nn::Module {
  Tensor by_rank_0_first = register_parameter("by_rank_0_first", torch::arange(6, torch::kDouble).view({3, 2})),
         by_rank_3_second = register_parameter("by_rank_3_second", torch::arange(10, torch::kDouble).view({5, 2})),
         by_rank_1_last = register_parameter("by_rank_1_last", torch::arange(3, torch::kDouble)),
         scalar = register_parameter("scalar", torch::tensor(2.0, torch::kDouble)),
         never = register_parameter("never", torch::ones({4}, torch::kDouble));
};

TEST(RequiresAllReduce, GivesAGradientEverywhereToWhatOneRankUsedInOneMicroBatch) {
  for (const Axes axes : {Axes{2, 2}, Axes{4, 1}, Axes{1, 4}}) {
    SCOPED_TRACE(c10::str(axes.shards, " x ", axes.replicas));
    run_thread_ranks(4, [&](int rank) {
      UsedOnce net;
      const auto group = shard_over(placement_over(axes), module_tree(net), {});
      for (int micro = 0; micro < 3; ++micro) {
        group.set_requires_all_reduce(micro == 2);
        Tensor loss;
        {
          const ForwardScope scope(group);
          loss = net.scalar.square();
          if (rank == 0 && micro == 0) loss = loss + net.by_rank_0_first.square().sum();
          if (rank == 3 && micro == 1) loss = loss + net.by_rank_3_second.square().sum();
          if (rank == 1 && micro == 2) loss = loss + net.by_rank_1_last.square().sum();
        }
        loss.backward();
      }
      const auto expect_mean = [](const Tensor& parameter, int uses) {
        const auto expected = full_tensor(parameter) * (2.0 * uses / 4);
        EXPECT_LT(relative_difference(expected, full_grad(parameter)), 1e-12);
      };
      expect_mean(net.by_rank_0_first, 1);
      expect_mean(net.by_rank_3_second, 1);
      expect_mean(net.by_rank_1_last, 1);
      expect_mean(net.scalar, 12);
      EXPECT_FALSE(net.never.grad().defined());
    });
  }
}

TEST(RequiresAllReduce, WithoutItNothingGoesOverTheReplicasAndRowsAreKept) {
  run_thread_ranks(4, [](int rank) {
    const auto plain = placement_over({2, 2});
    const auto log = std::make_shared<OperationLog>();
    const runtime::Placement placement(default_process_group(), recorded(plain.shard(), log),
                                       {recorded(*plain.replicate().front(), log)});
    OneWeight net;
    const auto group = shard_over(placement, module_tree(net), {});
    std::vector<std::string> subjects;
    for (int micro = 0; micro < 3; ++micro) {
      group.set_requires_all_reduce(micro == 2);
      log->clear();
      backward_of(group, net, gradient_of(rank, micro));
      for (const auto& entry : log->entries())
        if (entry.lane == "reductions" || entry.lane == "further steps")
          subjects.push_back(entry.operation + " of " + entry.subject);
      const auto rows_bytes = group.stats().rows.current;
      EXPECT_EQ(group.stats().gradient.current, rows_bytes);  // with the rows' padding
    }
    const auto begins = [](const char* operation, const char* ending) {
      return AllOf(HasSubstr(operation), testing::EndsWith(ending));
    };
    EXPECT_THAT(subjects,
                testing::ElementsAre(begins("reduce_scatter", "within the replica"),
                                     begins("reduce_scatter", "within the replica with 1 before"),
                                     begins("reduce_scatter", "with 2 before"), begins("all_reduce", "with 2 before")));
  });
}

TEST(RequiresAllReduce, NothingReadsGradientsUntilThenAndResetIterStateDropsWhatIsKept) {
  run_thread_ranks(4, [](int rank) {
    OneWeight net;
    const auto group = shard_over(placement_over({2, 2}), module_tree(net), {});
    group.set_requires_all_reduce(false);
    backward_of(group, net, gradient_of(rank, 0));
    expect_nothing_reads_gradients(group, net, "set_requires_all_reduce(true)");
    group.reset_iter_state();
    EXPECT_EQ(group.stats().gradient.current, 0);
    group.set_requires_all_reduce(true);
    backward_of(group, net, torch::ones({7, 3}));
    EXPECT_TRUE(torch::equal(full_grad(net.weight), torch::ones({7, 3})));
  });
}

TEST(RequiresAllReduce, ReplicasThatDifferAreAMismatch) {
  std::vector<std::string> messages(4);
  try {
    run_thread_ranks(4, [&](int rank) {
      OneWeight net;
      const auto group = shard_over(placement_over({2, 2}), module_tree(net), {});
      group.set_requires_all_reduce(rank < 2);
      try {
        backward_of(group, net, gradient_of(rank, 0));
        group.set_requires_all_reduce(true);
        backward_of(group, net, gradient_of(rank, 1));
      } catch (const Error& error) {
        messages[static_cast<size_t>(rank)] = error.what_without_backtrace();
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const std::exception&) {
    // Of the rank that was the first.
  }
  const auto is_mismatch = [](const auto& message) { return message.find("with 1 before'") != std::string::npos; };
  EXPECT_GE(std::ranges::count_if(messages, is_mismatch), 2) << c10::Join("\n", messages);
}

}  // namespace
}  // namespace fsdp::test::micro_batches
