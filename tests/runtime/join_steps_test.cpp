// Tests of the parts of a step that a rank without data leaves out.

#include <fsdp/sync_batch_norm.h>

#include "runtime/join_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

// The steps differ in the groups that they read, in the number of reads and of backwards, and in whether groups are
// gathered ahead.
void various_step(const JoinRank& on, int step) {
  auto& net = on.net;
  const auto& group = on.group;
  const auto x = samples({step, 0, kJoinSamples}, {5});
  const auto forward = [&] {
    const ForwardScope scope(group);
    auto h = torch::tanh(net.first->forward(x));
    for (size_t i = 0; i < net.blocks->size(); ++i)
      if (static_cast<int>(i) != step % 4) h = net.blocks[i]->as<SmallBlock>()->forward(h);
    if (step > 3 && torch::GradMode::is_enabled())  // runs a forward in the middle of the backward
      h.register_hook([&](const Tensor&) {
        const torch::NoGradGuard no_grad;
        const ForwardScope inside(group);
        net.blocks[1]->as<SmallBlock>()->forward(torch::ones({2, 11}, torch::kDouble));
      });
    return on.counted(net.head->forward(h).square().mean());
  };
  if (step % 3 == 0) {
    const torch::NoGradGuard no_grad;
    forward();
  }
  if (step % 3 == 1) {
    group_of(*net.blocks[2]).unshard().wait();
    const auto pending = group.no_sync();
    forward().backward();
  }
  if (step % 3 == 2) (forward() + forward()).backward();
  forward().backward();
  if (step == 4) forward();  // a forward without a backward
}

// Returns the gradients of such steps. `has_data` says which ranks have data.
std::vector<Tensor> gradients_with(const FullyShardOptions& options, bool (*has_data)(int step, int rank)) {
  std::vector<Tensor> gradients;
  run_thread_ranks(2, [&](int rank) {
    JoinRank on(options);
    on.group.set_reduce_scatter_unused_params(true);
    auto optimizer = sgd(on.net.parameters());
    for (int step = 0; step < 6; ++step) {
      // Both ranks have the same samples, so the mean over the ranks with data does not depend on which ranks have it.
      EXPECT_TRUE(on.join_alone(has_data(step, rank), [&] { various_step(on, step); }));
      optimizer.step();
      for (const auto& parameter : on.net.parameters())
        if (auto gradient = full_grad(parameter); rank == 0) gradients.push_back(gradient);
      optimizer.zero_grad();
    }
    EXPECT_FALSE(on.join(false, [] { FAIL() << "nobody has data"; }));
  });
  return gradients;
}

TEST(Join, GivesTheGradientsOfRanksWithDataWhateverTheStepDoes) {
  const auto expected = gradients_with({}, [](int, int) { return true; });
  for (const auto& options : kJoinOptions) {
    SCOPED_TRACE(c10::str(options.strategy));
    const auto found = gradients_with(options, [](int step, int rank) { return step % 2 == rank; });
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) expect_close(expected[i], found[i], 1e-10);
  }
}

TEST(Join, StepsInTheMiddleOfABackwardOnRanksWithoutDataToo) {
  for (const auto& options : kJoinOptions) {
    SCOPED_TRACE(c10::str(options.strategy));
    run_thread_ranks(2, [&](int rank) {
      const auto alone = double_small_net();
      JoinRank on(options);
      auto rest = on.net.first->parameters();
      rest.push_back(on.net.head->weight);
      auto in_backward = sgd(on.net.blocks->parameters()), optimizer = sgd(rest), unsharded = sgd(alone->parameters());
      int calls = 0;
      for (auto& block : *on.net.blocks)
        group_of(*block).set_post_accumulate_grad_hook([&](const std::vector<Tensor>&) {
          ++calls;
          in_backward.step();
          in_backward.zero_grad();
        });
      for (int step = 0; step < 3; ++step) {
        on.join_alone(rank == step % 2, [&] { on.forward(step).backward(); });
        optimizer.step();
        optimizer.zero_grad();
        small_net_loss(*alone, {step, 0, kJoinSamples}).backward();
        unsharded.step();
        unsharded.zero_grad();
      }
      EXPECT_EQ(calls, 3 * 3);
      on.expect_parameters_of(*alone);
    });
  }
}

// The test has two cases: only the last micro-batch sums over the replicas, or only the last one waits for reductions.
TEST(Join, LeavesOutMicroBatchesWhoseReductionsWait) {
  const auto alone = double_small_net();
  for (const int micro : {0, 1}) small_net_loss(*alone, {micro, 0, kJoinSamples}).backward();
  for (const bool waits_for_replicas : {true, false}) {
    SCOPED_TRACE(waits_for_replicas ? "set_requires_all_reduce" : "set_is_last_backward");
    run_thread_ranks(4, [&](int rank) {
      JoinRank on({.mesh = init_device_mesh({2, 2}, {"replicate", "shard"})});
      int complete = 0;
      for (auto& block : *on.net.blocks)
        group_of(*block).set_post_accumulate_grad_hook([&](const std::vector<Tensor>&) { ++complete; });
      const auto train = [&] {
        for (const bool is_last : {false, true}) {
          if (waits_for_replicas)
            on.group.set_requires_all_reduce(is_last);
          else
            on.group.set_is_last_backward(is_last);
          on.forward(is_last ? 1 : 0).backward();
        }
      };
      for (const int with_data : {1, 2}) {
        complete = 0;
        EXPECT_TRUE(on.join_alone(rank == with_data, train));
        EXPECT_EQ(complete, 3) << "each block, once its gradients are there";
        on.expect_gradients_of(*alone);
        on.net.zero_grad();
      }
    });
  }
}

// The inner backward computes the head's gradients only; the outer one computes all gradients.
TEST(Join, LeavesOutABackwardInsideAnother) {
  const auto train = [](SmallNetImpl& net, const auto& counted) {
    const auto loss = counted(small_net_loss(net, {0, 0, kJoinSamples}));
    loss.register_hook([&](const Tensor&) {
      const at::AutoGradMode records(true);
      counted(net.head->forward(torch::ones({2, 11}, torch::kDouble)).sum()).backward();
    });
    loss.backward();
  };
  const auto alone = double_small_net();
  train(*alone, [](const Tensor& loss) { return loss; });
  run_thread_ranks(2, [&](int rank) {
    JoinRank on;
    on.join_alone(rank == 1, [&] {
      const ForwardScope scope(on.group);
      train(on.net, [&](const Tensor& loss) { return on.counted(loss); });
    });
    on.expect_gradients_of(*alone);
  });
}

TEST(Join, ScalesTheUsersDivisorForTheStepAlone) {
  run_thread_ranks(2, [&](int rank) {
    JoinRank on;
    on.group.set_gradient_divide_factor(4);
    const auto gradient_of_join = [&](bool has_data) {
      on.net.zero_grad();
      on.join_alone(has_data, [&] {
        in_scope(on.group, [&] {
          return on.counted(on.net.head->forward(torch::ones({1, 11}, torch::kDouble)).sum());
        }).backward();
      });
      return full_grad(on.net.head->weight)[0][0].item<double>();
    };
    EXPECT_EQ(gradient_of_join(rank == 0), 1 / (4 * 0.5));
    EXPECT_EQ(gradient_of_join(true), 2.0 / 4);
  });
}

struct Counter : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({4})), count = register_buffer("count", torch::zeros({2}));
};

TEST(Join, TakesTheBuffersOfTheModuleWhoseScopeOpensFromTheFirstRankThatHasData) {
  run_thread_ranks(3, [](int rank) {
    torch::nn::Module net;
    const auto first = net.register_module("first", std::make_shared<Counter>());
    const auto second = net.register_module("second", std::make_shared<Counter>());
    for (const auto& counter : {first, second})
      fully_shard(static_cast<torch::nn::Module&>(*counter), {.strategy = Strategy::kReplicate});
    const auto group = fully_shard(net, {.strategy = Strategy::kReplicate});
    for (const int first_with_data : {1, 0}) {
      for (const auto& counter : {first, second}) counter->count.fill_(rank);
      join(group, rank >= first_with_data, [&] {
        const ForwardScope scope(group_of(*second));
        (second->weight.sum() * second->count).sum().backward();
      });
      EXPECT_TRUE(first->count.equal(torch::full({2}, static_cast<double>(rank))));
      EXPECT_TRUE(second->count.equal(torch::full({2}, static_cast<double>(first_with_data))));
    }
  });
}

// Rank 0 has data, rank 1 has none.
TEST(Join, OfAStepThatThrowsOnOneRankFailsOnTheOthersAndTrainingGoesOn) {
  const auto alone = double_small_net();
  small_net_loss(*alone, {0, 0, kJoinSamples}).backward();
  for (const int world : {2, 3})
    run_thread_ranks(world, [&](int rank) {
      JoinRank on;
      for (const int throwing : {0, 1})
        for (const bool in_forward : {false, true}) {
          const auto step = [&] {
            if (rank != throwing) return on.forward(0).backward();
            if (in_forward) on.forward(0);
            throw std::runtime_error("a broken file");
          };
          try {
            on.join(rank != 1, step);
            ADD_FAILURE() << "rank " << rank << " went on";
          } catch (const Mismatch&) {
            EXPECT_NE(rank, throwing);
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "a broken file");
            EXPECT_EQ(rank, throwing);
          }
          on.group.reset_iter_state();
          on.has_data = true;
          on.forward(0).backward();  // outside of join every rank counts
          on.expect_gradients_of(*alone);
          on.net.zero_grad();
          EXPECT_FALSE(on.join(false, [] {}));
        }
    });
}

// In the second and the third micro-batch, half of the ranks have data. Of these two only the second reads block 0, so
// when the third is reduced, some ranks have gradients of block 0 and others have none.
TEST(Join, LeavesOutAMicroBatchInTheMiddleOfAnAccumulation) {
  struct Micro {
    size_t skipped;
    bool even_have_data, odd_have_data;
  };
  const std::vector<Micro> micros{{0, true, true}, {2, true, false}, {0, false, true}};
  const auto loss_of = [](SmallNetImpl& net, int step, size_t skipped) {
    auto h = torch::tanh(net.first->forward(samples({step, 0, kJoinSamples}, {5})));
    for (size_t i = 0; i < net.blocks->size(); ++i)
      if (i != skipped) h = net.blocks[i]->as<SmallBlock>()->forward(h);
    return net.head->forward(h).square().mean();
  };
  for (const int world : {2, 3}) {
    const auto alone = double_small_net();
    for (int step = 0; step < std::ssize(micros); ++step) {
      const auto& [skipped, even, odd] = micros[static_cast<size_t>(step)];
      const int with_data = (even ? (world + 1) / 2 : 0) + (odd ? world / 2 : 0);
      (loss_of(*alone, step, skipped) * with_data / world).backward();
    }
    for (const auto& options : kJoinOptions) {
      SCOPED_TRACE(c10::str(options.strategy, " on ", world));
      run_thread_ranks(world, [&](int rank) {
        JoinRank on(options);
        for (int step = 0; step < std::ssize(micros); ++step) {
          const auto& [skipped, even, odd] = micros[static_cast<size_t>(step)];
          const bool is_last = step + 1 == std::ssize(micros);
          on.group.set_requires_gradient_sync(is_last);
          EXPECT_TRUE(on.join(rank % 2 == 0 ? even : odd, [&, &skip = skipped] {
            in_scope(on.group, [&] { return on.counted(loss_of(on.net, step, skip)); }).backward();
          }));
          if (!is_last) EXPECT_THROW(clip_grad_norm_(on.group, 1.0), UsageError) << "alike on all ranks";
        }
        on.expect_gradients_of(*alone);
      });
    }
  }
}

struct Words : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({6, 2}, torch::kDouble));
  Tensor other = register_parameter("other", torch::ones({3, 2}, torch::kDouble));
};

TEST(Join, LeavesAParameterWithoutAGradientThatOnlyARankWithoutDataUses) {
  for (auto options : kJoinOptions)
    for (const int64_t bucket_cap_bytes : {int64_t{25} << 20, int64_t{1}}) {
      SCOPED_TRACE(c10::str(options.strategy));
      options.bucket_cap_bytes = bucket_cap_bytes;
      run_thread_ranks(2, [&](int rank) {
        Words net;
        const auto group = fully_shard(static_cast<torch::nn::Module&>(net), options);
        join(group, rank == 0, [&] {
          const ForwardScope scope(group);
          auto loss = torch::embedding(net.weight, torch::tensor({1, 1, 4}), -1, false, /*sparse=*/true).sum();
          if (rank == 1) loss = (loss + net.other.sum()) * std::numeric_limits<double>::quiet_NaN();
          loss.backward();
        });
        const auto expected = torch::zeros({6, 2}, torch::kDouble);
        expected[1].fill_(2.0 / 2);
        expected[4].fill_(1.0 / 2);
        expect_close(expected, full_grad(net.weight), 1e-12);
        EXPECT_FALSE(net.other.grad().defined());
      });
    }
}

// The inputs of ranks without data are NaN.
TEST(Join, LeavesRanksWithoutDataOutOfTheStatisticsOfBatchNorms) {
  const auto build = [] {
    return build_alike([] {
      auto net = torch::nn::Sequential(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3));
      net->to(torch::kDouble);
      return net;
    });
  };
  const std::vector<std::vector<int>> with_data{{0, 2}, {1}};
  run_thread_ranks(3, [&](int rank) {
    auto alone = build(), net = build();
    convert_sync_batchnorm(*net);
    const auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    auto optimizer = sgd(net->parameters()), unsharded = sgd(alone->parameters());
    for (int step = 0; step < std::ssize(with_data); ++step) {
      const auto& ranks = with_data[static_cast<size_t>(step)];
      const auto batch_of = [&](int of) { return samples({step, of * 4, 4}, {5}); };
      const bool has_data = std::ranges::find(ranks, rank) != ranks.end();
      join(group, has_data,
           [&] {
             const ForwardScope scope(group);
             const auto x = has_data ? batch_of(rank) : torch::full({4, 5}, std::nan(""), torch::kDouble);
             net->forward(x).square().mean().backward();
           },
           {.divide_by_initial_world_size = false});
      std::vector<Tensor> batches;
      for (const int of : ranks) batches.push_back(batch_of(of));
      alone->forward(torch::cat(batches)).square().mean().backward();
      for (auto* each : {&optimizer, &unsharded}) {
        each->step();
        each->zero_grad();
      }
    }
    for (size_t i = 0; i < net->parameters().size(); ++i)
      expect_close(alone->parameters()[i], full_tensor(net->parameters()[i]), 1e-10);
    for (size_t i = 0; i < net->buffers().size(); ++i) expect_close(alone->buffers()[i], net->buffers()[i], 1e-10);
  });
}

// A step may train several models. On each, the gradients of ranks without data are left out, and the divisor applies.
TEST(Join, IsOfEveryModelThatTheStepTrains) {
  const auto alone = double_small_net();
  small_net_loss(*alone, {0, 0, kJoinSamples}).backward();
  run_thread_ranks(2, [&](int rank) {
    JoinRank on, other;
    on.join_alone(rank == 0, [&] {
      other.has_data = on.has_data;
      (on.forward(0) + other.forward(0)).backward();
    });
    for (const auto* each : {&on, &other}) each->expect_gradients_of(*alone);
    const ForwardScope scope(other.group);
    EXPECT_THROW(join(on.group, true, [] {}), UsageError);
  });
}

TEST(Join, ThatOneRankIsRefusedIsAnErrorOnTheOthersAtOnce) {
  run_thread_ranks_with(2, {.timeout = std::chrono::seconds(10)}, [](int rank) {
    JoinRank on;
    {
      const auto rows = rank == 1 ? std::make_unique<LocalRows>(on.group) : nullptr;
      EXPECT_THAT([&] { on.join(true, [] { FAIL(); }); },
                  testing::ThrowsMessage<Error>(testing::HasSubstr(rank == 1 ? "open on" : "join: rank 1 failed")));
    }
    EXPECT_FALSE(on.join(false, [] {}));
  });
}

TEST(Join, IsRefusedInAScopeAndWithoutAStepAndWhereOptionsDiffer) {
  run_thread_ranks(2, [](int rank) {
    JoinRank on;
    EXPECT_THROW(join(on.group, true, nullptr), UsageError);
    {
      const ForwardScope scope(on.group);
      EXPECT_THROW(join(on.group, true, [] {}), UsageError);
    }
    {
      const LocalRows rows(on.group);
      EXPECT_THROW(join(on.group, true, [] {}), UsageError);
    }
    EXPECT_FALSE(on.join(false, [] {}));
    EXPECT_THROW(join(on.group, true, [] {}, {.divide_by_initial_world_size = rank == 0}), Mismatch);
  });
}

}  // namespace
}  // namespace fsdp::test
