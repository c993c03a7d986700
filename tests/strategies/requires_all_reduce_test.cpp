// Micro-batches whose gradients stay within the replica until the last one.

#include "strategies/micro_batches.h"

namespace fsdp::test::micro_batches {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

TEST(RequiresAllReduce, InTheLastMicroBatchAloneEqualsTheUnshardedRun) {
  for (const auto& run : kRuns)
    expect_micro_batches_equal_the_unsharded_run(
        run, [](const Group& group, int micro) { group.set_requires_all_reduce(micro == 2); });
}

TEST(RequiresAllReduce, MixesWithBackwardsThatKeepWholeGradientsAndWithGroupsThatDoOtherwise) {
  const ShardedRun run{Strategy::kFullShard, {2, 2}};
  // Whole gradients of the second micro-batch wait beside what is kept of the first.
  expect_micro_batches_equal_the_unsharded_run(run, [](const Group& group, int micro) {
    group.set_requires_all_reduce(micro == 2);
    group.set_requires_gradient_sync(micro != 1);
  });
  expect_micro_batches_equal_the_unsharded_run(
      run, [](const Group& group, int micro) { group.set_requires_all_reduce(micro == 2, /*recurse=*/false); });
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
struct UsedOnce : torch::nn::Module {
  Tensor by_rank_0_first = register_parameter("by_rank_0_first", torch::arange(6, torch::kDouble).view({3, 2})),
         by_last_rank_second =
             register_parameter("by_last_rank_second", torch::arange(10, torch::kDouble).view({5, 2})),
         by_rank_1_last = register_parameter("by_rank_1_last", torch::arange(3, torch::kDouble)),
         scalar = register_parameter("scalar", torch::tensor(2.0, torch::kDouble)),
         never = register_parameter("never", torch::ones({4}, torch::kDouble));
};

TEST(RequiresAllReduce, GivesAGradientEverywhereToWhatOneRankUsedInOneMicroBatch) {
  for (const Axes axes : {Axes{2, 2}, Axes{3, 1}, Axes{1, 3}}) {
    SCOPED_TRACE(text_of(axes));
    run_thread_ranks(axes.ranks(), [&](int rank) {
      UsedOnce net;
      const auto group = shard_over(placement_over(axes), module_tree(net), {});
      for (int micro = 0; micro < 3; ++micro) {
        group.set_requires_all_reduce(micro == 2);
        backward(group, [&] {
          auto loss = net.scalar.square();
          if (rank == 0 && micro == 0) loss = loss + net.by_rank_0_first.square().sum();
          if (rank == axes.ranks() - 1 && micro == 1) loss = loss + net.by_last_rank_second.square().sum();
          if (rank == 1 && micro == 2) loss = loss + net.by_rank_1_last.square().sum();
          return loss;
        });
      }
      const auto expect_mean = [&](const Tensor& parameter, int uses) {
        const auto expected = full_tensor(parameter) * (2.0 * uses / axes.ranks());
        EXPECT_LT(relative_difference(expected, full_grad(parameter)), 1e-12);
      };
      for (const auto* once : {&net.by_rank_0_first, &net.by_last_rank_second, &net.by_rank_1_last})
        expect_mean(*once, 1);
      expect_mean(net.scalar, 3 * axes.ranks());
      EXPECT_FALSE(net.never.grad().defined());
    });
  }
}

TEST(RequiresAllReduce, WithoutItNothingGoesOverTheReplicasAndRowsAreKept) {
  run_thread_ranks(4, [](int rank) {
    const RecordedAxes axes({2, 2});
    OneWeight net;
    const auto group = shard_over(axes.placement, module_tree(net), {});
    std::vector<std::string> subjects;
    for (int micro = 0; micro < 3; ++micro) {
      group.set_requires_all_reduce(micro == 2);
      axes.log->clear();
      backward_of(group, net, gradient_of(rank, micro));
      for (const auto& entry : reductions_in(*axes.log)) subjects.push_back(entry.operation + " of " + entry.subject);
      EXPECT_EQ(group.stats().gradient.current, group.stats().rows.current);  // with the rows' padding
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
    backward_of(group, net, gradient_of(rank));
    expect_nothing_reads_gradients(group, net, "set_requires_all_reduce(true)");
    group.reset_iter_state();
    EXPECT_EQ(group.stats().gradient.current, 0);
    group.set_requires_all_reduce(true);
    backward_of(group, net, torch::ones({7, 3}));
    EXPECT_TRUE(torch::equal(full_grad(net.weight), torch::ones({7, 3})));
  });
}

TEST(RequiresAllReduce, ReplicasThatDifferAreAMismatch) {
  const auto messages = errors_of_step({2, 2}, [](int rank, OneWeight& net, const Group& group) {
    group.set_requires_all_reduce(rank < 2);
    backward_of(group, net, gradient_of(rank));
    group.set_requires_all_reduce(true);
  });
  const auto is_mismatch = [](const auto& message) { return message.find("with 1 before'") != std::string::npos; };
  EXPECT_GE(std::ranges::count_if(messages, is_mismatch), 2) << c10::Join("\n", messages);
}

}  // namespace
}  // namespace fsdp::test::micro_batches
