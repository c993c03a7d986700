// Tests of gradients of micro-batches that wait for the last one: whole, reduced within the replica, or in reductions
// that outlive backward.

#include <future>

#include "strategies/micro_batches.h"

namespace fsdp::test::micro_batches {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

TEST(Strategies, AccumulateOverMicroBatchesOnEveryMesh) {
  for (const auto& run : kRuns)
    expect_micro_batches_equal_the_unsharded_run(
        run, [](const Group& group, int micro) { group.set_requires_gradient_sync(micro == 2); });
}

TEST(RequiresAllReduce, InTheLastMicroBatchAloneEqualsTheUnshardedRun) {
  for (const auto& run : kRuns)
    expect_micro_batches_equal_the_unsharded_run(
        run, [](const Group& group, int micro) { group.set_requires_all_reduce(micro == 2); });
}

// The second parameter is frozen at first. Its group has a parameter in fp16, so the sums of the group are scaled.
struct TwoDtypes : nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({4, 3})),
         half = register_parameter("half", torch::ones({4, 3}, torch::kHalf), /*requires_grad=*/false);
};

TEST(RequiresAllReduce, KeepsSumsOfWhatTrainsBesideAFrozenParameterThatBeginsToTrain) {
  run_thread_ranks(4, [](int rank) {
    TwoDtypes net;
    const auto group = shard_over(placement_over({2, 2}), module_tree(net), {});
    const auto weighted = [&] { return (net.weight * (rank + 1)).sum(); };
    group.set_requires_all_reduce(false);
    backward(group, weighted);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_NO_THROW(net.half.mul_(2)) << "no gradient of it waits";
    }
    net.half.requires_grad_(true);
    group.set_requires_all_reduce(true);
    backward(group, [&] { return weighted() + net.half.sum().to(torch::kFloat); });
    EXPECT_TRUE(full_grad(net.weight).equal(torch::full({4, 3}, 2 * 2.5)));
    EXPECT_TRUE(full_grad(net.half).equal(torch::ones({4, 3}, torch::kHalf)));
  });
}

TEST(IsLastBackward, MicroBatchesWhoseReductionsOutliveBackwardEqualTheUnshardedRun) {
  for (const auto& run : kRuns)
    expect_micro_batches_equal_the_unsharded_run(run, [](const Group& group, int micro) {
      group.set_is_last_backward(micro == 2);
      group.set_requires_all_reduce(micro != 0);  // kept gradients may be in flight, too
    });
}

// Expects that nothing reads gradients while they wait, and that the errors name `way_out`.
void expect_nothing_reads_gradients(const Group& group, OneWeight& net, const char* way_out) {
  EXPECT_FALSE(net.weight.grad().defined());
  torch::optim::SGD plain({net.weight}, 0.1);
  optim::SGD fused({net.weight}, torch::optim::SGDOptions(0.1));
  net.weight.mutable_grad() = torch::ones({local_rows(net.weight).count, 3});
  EXPECT_THAT(message_of([&] { plain.step(); }), HasSubstr(way_out));
  EXPECT_THAT(message_of([&] { fused.step(); }), HasSubstr(way_out));
  EXPECT_THAT(message_of([&] { clip_grad_norm_(group, 1); }), HasSubstr(way_out));
  EXPECT_THAT(message_of([&] { return full_grad(net.weight); }),
              AllOf(HasSubstr(way_out), HasSubstr("full_grad"), HasSubstr("reset_iter_state()")));
  net.weight.mutable_grad().reset();
}

TEST(GradientsThatWait, AreReadByNothingAndDroppedByResetIterState) {
  const auto test = [](Axes axes, void (*set)(const Group&, bool), const char* way_out) {
    run_thread_ranks(axes.ranks(), [&](int rank) {
      OneWeight net;
      const auto group = shard_over(placement_over(axes), module_tree(net), {});
      set(group, false);
      backward_of(group, net, gradient_of(rank));
      expect_nothing_reads_gradients(group, net, way_out);
      group.reset_iter_state();
      set(group, true);
      backward_of(group, net, torch::ones({7, 3}));
      EXPECT_TRUE(full_grad(net.weight).allclose(torch::ones({7, 3})));
    });
  };
  for (const auto axes : {Axes{1, 1}, Axes{3, 1}})
    test(
        axes, [](const Group& group, bool is_last) { group.set_is_last_backward(is_last); },
        "set_is_last_backward(true)");
  test(
      {2, 2}, [](const Group& group, bool reduces) { group.set_requires_all_reduce(reduces); },
      "set_requires_all_reduce(true)");
}

TEST(RequiresAllReduce, MixesWithBackwardsThatKeepWholeGradientsAndWithGroupsThatDoOtherwise) {
  const ShardedRun run{Strategy::kFullShard, {2, 2}};
  // The whole gradients of the second micro-batch wait beside those of the first one, which are kept within the
  // replica.
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
      Tensor kept;  // gradient of this rank's rows
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
    EXPECT_TRUE(torch::equal(plain_copy(net.weight.grad()), expected * torch::scalar_tensor(1.0 / 3, torch::kDouble)));
  });
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
      EXPECT_EQ(group.stats().gradient.current, group.stats().rows.current);  // includes the rows' padding
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

TEST(IsLastBackward, AMicroBatchEndsWithoutTheRanksThatHaveYetToReduceIt) {
  std::promise<void> rank_0_went_on;
  auto signal = rank_0_went_on.get_future().share();
  const auto oracle = make_small_net(11, 1);
  for (int micro : {0, 1}) small_net_loss(*oracle, {micro, 0, 4}).backward();
  run_thread_ranks(2, [&](int rank) {
    const auto net = make_small_net(11, 1);
    const auto group = shard_blocks(*net, {.reshard_after_forward = Reshard::never()});
    for (int micro : {0, 1}) {
      group.set_is_last_backward(micro == 1);
      const auto loss = loss_of_rank(group, *net, micro);
      if (micro == 0 && rank == 1) signal.wait();
      loss.backward();
      if (micro == 0 && rank == 0) rank_0_went_on.set_value();
    }
    expect_gradients_equal(*oracle, *net, 1e-5);
  });
}

// In the schedule 1F1B, forwards run ahead. Parameters are unsharded before the step and stay whole between
// micro-batches.
TEST(IsLastBackward, APipelinesOrderEqualsTheUnshardedRun) {
  for (const auto& [run, syncs_last] : {std::pair(ShardedRun{Strategy::kFullShard, {}}, false),
                                        {ShardedRun{Strategy::kShardGradOp, {2, 2}}, true},
                                        {ShardedRun{Strategy::kReplicate, {}}, false}}) {
    auto program = small_net_program(run);
    program.run = [syncs_last = syncs_last](SmallNetImpl& net, const Role& role) {
      auto optimizer = sgd(net.parameters());
      Values losses;
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        if (role.is_sharded()) {
          for (const auto& block : *net.blocks) static_cast<void>(group_of(*block).unshard());
          static_cast<void>(group_of(net).unshard());
        }
        std::vector<Tensor> ahead;
        const auto forward = [&](int micro) {
          ahead.push_back(role.whole(net, [&] { return small_net_loss(net, role.batch(4 * step + micro)) / 4; }));
          losses.push_back(ahead.back().detach());
        };
        forward(0);
        forward(1);
        for (int micro = 0; micro < 4; ++micro) {
          if (role.is_sharded()) {
            const bool is_last = micro == 3;
            const auto group = group_of(net);
            group.set_is_last_backward(is_last);
            group.set_reshard_after_backward(is_last);
            group.set_requires_gradient_sync(is_last || !syncs_last);
          }
          ahead[static_cast<size_t>(micro)].backward();
          if (micro + 2 < 4) forward(micro + 2);
        }
        optimizer.step();
      }
      return losses;
    };
    expect_equals_unsharded(program, {ranks_of(run.shape)});
  }
}

// The branch takes part only in the first of two backwards. Another model's backward runs between them.
TEST(IsLastBackward, FinishesWhatTheLastOneDoesNotReachAndAddsToWhatWasThere) {
  run_thread_ranks(2, [](int rank) {
    const auto layers = [](int count) {
      return build_alike([=] {
        nn::Sequential made;
        for (int i = 0; i < count; ++i) made->push_back(nn::Linear(4, 4));
        return made;
      });
    };
    auto net = layers(2), other = layers(3), oracle = layers(2);
    for (auto* model : {&net, &other})
      for (const auto& layer : **model) fully_shard(*layer.ptr());
    const auto group = fully_shard(*net), others = fully_shard(*other);
    const auto x = [](int r) { return samples({1, 2 * r, 2}, {4}, torch::kFloat); };
    const auto loss_of = [](nn::Sequential& model, const Tensor& input, bool both) {
      const auto hidden = model[0]->as<nn::Linear>()->forward(input);
      return (both ? model[1]->as<nn::Linear>()->forward(hidden) : hidden).square().sum();
    };
    const auto step = [&](bool both, bool is_last) {
      group.set_is_last_backward(is_last);
      backward(group, [&] { return loss_of(net, x(rank), both); });
      for (int r = 0; r < 2; ++r) (loss_of(oracle, x(r), both) / 2).backward();
    };
    step(true, true);
    step(true, false);
    backward(others, [&] { return other->forward(x(rank)).sum(); });
    step(false, true);
    expect_gradients_equal(*oracle, *net, 1e-5);
  });
}

// An earlier backward waits for some reductions, because too many are in flight. It must not call those groups' hooks.
TEST(IsLastBackward, TheHookOfCompleteGradientsIsCalledInItAlone) {
  run_thread_ranks(2, [](int) {
    const auto net = make_small_net(11, 4);
    const auto group = shard_blocks(*net);
    std::vector<int> calls(net->blocks->size());
    for (size_t i = 0; i < calls.size(); ++i)
      group_of(*net->blocks[i]).set_post_accumulate_grad_hook([&calls, i](const auto&) { ++calls[i]; });
    for (int micro = 0; micro < 6; ++micro) {
      group.set_is_last_backward(micro % 3 == 2);
      loss_of_rank(group, *net, micro).backward();
      EXPECT_THAT(calls, testing::Each((micro + 1) / 3));
    }
    for (const auto& block : *net->blocks) group_of(*block).set_post_accumulate_grad_hook({});
  });
}

}  // namespace
}  // namespace fsdp::test::micro_batches
