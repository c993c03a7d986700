// Micro-batches whose reductions outlive their backward.

#include <future>

#include "strategies/micro_batches.h"

namespace fsdp::test::micro_batches {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

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

TEST(IsLastBackward, MicroBatchesWhoseReductionsOutliveBackwardEqualTheUnshardedRun) {
  for (const auto& run : kRuns)
    expect_micro_batches_equal_the_unsharded_run(run, [](const Group& group, int micro) {
      group.set_is_last_backward(micro == 2);
      group.set_requires_all_reduce(micro != 0);  // what is kept may be in flight too
    });
}

// One forward, one backward: forwards run ahead, whole parameters are asked for before and stay between micro-batches.
TEST(IsLastBackward, APipelinesOrderEqualsTheUnshardedRun) {
  for (const bool syncs_last : {false, true})
    for (const ShardedRun& run : {ShardedRun{Strategy::kFullShard, {}}, ShardedRun{Strategy::kShardGradOp, {2, 2}},
                                  ShardedRun{Strategy::kReplicate, {}}}) {
      SCOPED_TRACE(text_of(run.strategy, run.shape) + (syncs_last ? ", one reduction" : ""));
      auto program = small_net_program(run);
      program.run = [&](SmallNetImpl& net, const Role& role) {
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

// The branch takes part in the first of two backwards alone, and another model's backward comes between them.
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

TEST(IsLastBackward, NothingReadsGradientsUntilThenAndResetIterStateDropsWhatIsInFlight) {
  for (int world : {1, 2, 3})
    run_thread_ranks(world, [](int rank) {
      OneWeight net;
      const auto group = fully_shard(net);
      group.set_is_last_backward(false);
      backward_of(group, net, gradient_of(rank));
      expect_nothing_reads_gradients(group, net, "set_is_last_backward(true)");
      group.reset_iter_state();
      group.set_is_last_backward(true);
      backward_of(group, net, torch::ones({7, 3}));
      EXPECT_TRUE(full_grad(net.weight).allclose(torch::ones({7, 3})));
    });
}

// Also for groups whose reductions an earlier one had to wait for, because too many were in flight.
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

// Over both axes, with sums within the replica: what the ranks that have data say is what this rank does too.
TEST(IsLastBackward, ARankWithoutDataTakesPart) {
  run_thread_ranks(4, [](int rank) {
    OneWeight net;
    const auto group = fully_shard(net, in_small_buckets(Strategy::kFullShard, {2, 2}));
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      join(group, rank < 3, [&] {
        for (int micro = 0; micro < 3; ++micro) {
          group.set_requires_all_reduce(micro == 2);
          group.set_is_last_backward(micro == 2);
          backward_of(group, net, torch::full({7, 3}, 1.0 + rank + micro + step));
        }
      });
      EXPECT_TRUE(full_grad(net.weight).allclose(torch::full({7, 3}, (6.0 + 9.0 + 12.0 + 9 * step) / 4)));
    }
  });
}

}  // namespace
}  // namespace fsdp::test::micro_batches
