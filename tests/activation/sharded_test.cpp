// activation_checkpoint with sharded parameters: bits, bytes and gathers beside those of the same steps without it.

#include <fsdp/activation_checkpoint.h>
#include <gmock/gmock.h>

#include "runtime/param_group.h"
#include "support/axes.h"
#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

using Wrap = std::function<torch::Tensor(SmallBlock block, const torch::Tensor& x)>;

torch::Tensor plain(SmallBlock block, const torch::Tensor& x) { return block(x); }
torch::Tensor computed_again(SmallBlock block, const torch::Tensor& x) { return activation_checkpoint(block, x); }

torch::Tensor run_blocks(SmallNetImpl& net, torch::Tensor h, const Wrap& wrap) {
  for (auto& block : *net.blocks) h = wrap(SmallBlock(std::dynamic_pointer_cast<SmallBlockImpl>(block)), h);
  return h;
}

torch::Tensor loss_with(SmallNetImpl& net, const Batch& batch, const Wrap& wrap) {
  const auto dtype = net.head->weight.scalar_type();
  const auto h = run_blocks(net, torch::tanh(net.first(samples(batch, {5}, dtype))), wrap);
  return torch::mse_loss(net.head(h).to(dtype), samples(batch, {3}, dtype));
}

Training<SmallNetImpl> training_with(const Wrap& wrap, const FullyShardOptions& options = {}) {
  auto training = small_net_training(options);
  training.loss = [wrap](SmallNetImpl& net, const Batch& batch) { return loss_with(net, batch, wrap); };
  training.steps = 3;
  return training;
}

void expect_bits(const Outcome& expected, const Outcome& found) {
  EXPECT_EQ(expected.losses, found.losses);
  ASSERT_EQ(expected.parameters.size(), found.parameters.size());
  for (size_t i = 0; i < expected.parameters.size(); ++i)
    EXPECT_TRUE(torch::equal(expected.parameters[i], found.parameters[i])) << "parameter " << i;
}

// On every rank: the same steps with the blocks computed again and without.
void expect_bits_of_the_plain_steps(const Training<SmallNetImpl>& expected, const Training<SmallNetImpl>& training,
                                    int world, const ThreadRanksOptions& options = {}) {
  std::vector<std::shared_ptr<SmallNetImpl>> nets, others;
  for (int r = 0; r < world; ++r) {
    nets.push_back(build_model(expected));
    others.push_back(build_model(training));
  }
  run_thread_ranks(
      world,
      [&](int r) {
        const auto outcome = train_sharded(expected, *nets[static_cast<size_t>(r)]);
        expect_bits(outcome, train_sharded(training, *others[static_cast<size_t>(r)]));
      },
      options);
}

constexpr std::array kStrategies{Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer,
                                 Strategy::kReplicate};

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsInEveryWorldAndStrategy) {
  for (int world : worlds_up_to(4))
    for (const auto strategy : kStrategies) {
      SCOPED_TRACE(c10::str("world ", world, ", strategy ", static_cast<int>(strategy)));
      const FullyShardOptions options{.strategy = strategy};
      expect_bits_of_the_plain_steps(training_with(plain, options), training_with(computed_again, options), world);
    }
}

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsHoweverWholeParametersStay) {
  for (const auto& reshard : {Reshard::always(), Reshard::never(), Reshard::within(2)}) {
    const FullyShardOptions options{.reshard_after_forward = reshard};
    expect_bits_of_the_plain_steps(training_with(plain, options), training_with(computed_again, options), 4);
  }
}

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsOverBothAxes) {
  const auto over_axes = [](const Wrap& wrap) {
    auto training = training_with(wrap);
    training.shard = [](SmallNetImpl& net) {
      const auto placement = placement_over({2, 2});
      for (auto& block : *net.blocks) shard_over(placement, module_tree(*block), {});
      return shard_over(placement, module_tree(net), {});
    };
    return training;
  };
  expect_bits_of_the_plain_steps(over_axes(plain), over_axes(computed_again), 4);
}

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsWithMixedPrecision) {
  for (int world : worlds_up_to(3)) {
    FullyShardOptions options;
    options.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat};
    auto expected = training_with(plain, options), training = training_with(computed_again, options);
    in_float32(expected), in_float32(training);
    expect_bits_of_the_plain_steps(expected, training, world);
  }
}

// Groups inside groups, of which a part computes two again, and parts inside it one each.
TEST(ActivationSharded, PartsInsidePartsOverGroupsInsideGroupsHaveTheBitsOfThePlainSteps) {
  const auto nested = [](const Wrap& wrap) {
    FullyShardOptions options;
    auto training = training_with(wrap, options);
    training.shard = [](SmallNetImpl& net) {
      for (auto& block : *net.blocks) {
        fully_shard(*block->as<SmallBlock>()->in);
        fully_shard(*block);
      }
      return fully_shard(static_cast<torch::nn::Module&>(net));
    };
    training.loss = [wrap](SmallNetImpl& net, const Batch& batch) {
      const auto x = samples(batch, {5}, torch::kDouble);
      const auto part = [&net, wrap](const torch::Tensor& h) { return run_blocks(net, torch::tanh(net.first(h)), wrap); };
      const auto h = wrap == nullptr ? run_blocks(net, torch::tanh(net.first(x)), plain) : activation_checkpoint(part, x);
      return torch::mse_loss(net.head(h), samples(batch, {3}, torch::kDouble));
    };
    return training;
  };
  for (int world : worlds_up_to(3)) expect_bits_of_the_plain_steps(nested({}), nested(computed_again), world);
}

TEST(ActivationSharded, ABlockInsideAndOutsideOfAPartHasTheBitsOfThePlainSteps) {
  const auto twice = [](bool checkpoints) {
    return [=](SmallBlock block, const torch::Tensor& x) {
      const auto again = checkpoints ? activation_checkpoint(block, block(x)) : block(block(x));
      return block(torch::tanh(again));
    };
  };
  for (int world : worlds_up_to(3))
    expect_bits_of_the_plain_steps(training_with(twice(false)), training_with(twice(true)), world);
}

// A block's slope, as of an energy.
torch::Tensor slope_at(SmallBlock block, const torch::Tensor& x) {
  return torch::autograd::grad({torch::tanh(block(x)).square().sum()}, {x}, {}, /*retain_graph=*/true,
                               /*create_graph=*/true)[0];
}

TEST(ActivationSharded, BlocksThatDifferentiateInsideHaveTheBitsOfThePlainSteps) {
  const auto slopes_again = [](SmallBlock block, const torch::Tensor& x) {
    return activation_checkpoint([block](const torch::Tensor& h) { return slope_at(block, h); }, x);
  };
  for (int world : worlds_up_to(3))
    expect_bits_of_the_plain_steps(training_with(slope_at), training_with(slopes_again), world);
}

TEST(ActivationSharded, KeptProductsHaveTheBitsOfThePlainSteps) {
  const auto selective = [](SmallBlock block, const torch::Tensor& x) {
    return activation_checkpoint({.keeps_results = is_product}, block, x);
  };
  for (int world : worlds_up_to(3))
    expect_bits_of_the_plain_steps(training_with(plain), training_with(selective), world);
}

struct TiedNetImpl : torch::nn::Module {
  torch::nn::Embedding words{24, 12};
  torch::nn::Linear middle{12, 12};
  TiedNetImpl() {
    register_module("words", words);
    register_module("middle", middle);
  }
};

TEST(ActivationSharded, TiedWeightsHaveTheBitsOfThePlainSteps) {
  const auto training = [](bool checkpoints) {
    Training<TiedNetImpl> tied;
    tied.build = [] { return std::make_shared<TiedNetImpl>(); };
    tied.shard = [](TiedNetImpl& net) {
      fully_shard(*net.middle);
      return fully_shard(static_cast<torch::nn::Module&>(net));
    };
    tied.loss = [=](TiedNetImpl& net, const Batch& batch) {
      const auto part = [&net](const torch::Tensor& h) { return torch::linear(torch::tanh(net.middle(h)), net.words->weight); };
      const auto h = net.words(labels(batch, {4}, 24)).sum(1);
      return (checkpoints ? activation_checkpoint(part, h) : part(h)).square().mean();
    };
    return tied;
  };
  for (int world : worlds_up_to(3)) {
    std::vector<std::shared_ptr<TiedNetImpl>> models;
    for (int i = 0; i < 2 * world; ++i) models.push_back(build_model(training(false)));
    run_thread_ranks(world, [&](int r) {
      const auto expected = train_sharded(training(false), *models[static_cast<size_t>(2 * r)]);
      expect_bits(expected, train_sharded(training(true), *models[static_cast<size_t>(2 * r + 1)]));
    });
  }
}

TEST(ActivationSharded, AHandleIsCalledAgain) {
  const auto training = [](bool checkpoints) {
    auto handles = training_with(plain);
    handles.loss = [=](SmallNetImpl& net, const Batch& batch) {
      auto h = torch::tanh(net.first(samples(batch, {5}, torch::kDouble)));
      for (auto& block : *net.blocks) {
        Sharded<SmallBlock> handle(SmallBlock(std::dynamic_pointer_cast<SmallBlockImpl>(block)), group_of(*block));
        h = checkpoints ? activation_checkpoint(handle, h) : handle(h);
      }
      return torch::mse_loss(net.head(h), samples(batch, {3}, torch::kDouble));
    };
    return handles;
  };
  for (int world : worlds_up_to(3)) expect_bits_of_the_plain_steps(training(false), training(true), world);
}

TEST(ActivationSharded, MicroBatchesAndAccumulationHaveTheBitsOfThePlainOnes) {
  for (int world : worlds_up_to(3)) {
    std::vector<std::vector<torch::Tensor>> gradients(2);
    for (bool checkpoints : {false, true}) {
      const Wrap wrap = checkpoints ? computed_again : plain;
      const auto training = training_with(wrap);
      std::vector<std::shared_ptr<SmallNetImpl>> nets;
      for (int r = 0; r < world; ++r) nets.push_back(build_model(training));
      run_thread_ranks(world, [&](int r) {
        auto& net = *nets[static_cast<size_t>(r)];
        const auto group = shard_blocks(net);
        for (int i = 0; i < 3; ++i) {
          group.set_requires_gradient_sync(i == 2);
          torch::Tensor loss;
          {
            const ForwardScope scope(group);
            loss = loss_with(net, {i, 2 * r, 2}, wrap);
          }
          loss.backward();
        }
        for (const auto& parameter : net.parameters()) {
          const auto whole = full_grad(parameter);
          if (r == 0) gradients[checkpoints].push_back(whole);
        }
      });
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) EXPECT_TRUE(torch::equal(gradients[0][i], gradients[1][i])) << i;
  }
}

int64_t whole_bytes_of(SmallNetImpl& net) {
  int64_t bytes = 0;
  for (const auto& parameter : net.parameters()) bytes += c10::multiply_integers(global_sizes(parameter)) * 8;
  return bytes;
}

// What forward keeps is each block's input, and backward gathers as often and holds as much as without.
TEST(ActivationSharded, BytesAndGathersAreThoseOfThePlainStepsAndActivationsTheInputs) {
  for (int world : {2, 3}) {
    std::array<GroupStats, 2> stats;
    std::array<std::vector<std::string>, 2> gathers, reductions;
    for (bool checkpoints : {false, true}) {
      const Wrap wrap = checkpoints ? computed_again : plain;
      const auto training = training_with(wrap);
      std::vector<std::shared_ptr<SmallNetImpl>> nets;
      for (int r = 0; r < world; ++r) nets.push_back(build_model(training));
      Recorded recorded(world);
      run_thread_ranks(
          world,
          [&](int r) {
            auto& net = *nets[static_cast<size_t>(r)];
            const auto group = shard_blocks(net);
            for (int step = 0; step < 3; ++step) {
              net.zero_grad();
              group.reset_peak_stats();
              recorded.clear(r);
              torch::Tensor loss;
              {
                const ForwardScope scope(group);
                loss = loss_with(net, {step, 2 * r, 2}, wrap);
              }
              EXPECT_EQ(group.stats().activation.current, checkpoints ? 3 * 2 * 11 * 8 : 0);
              loss.backward();
              EXPECT_EQ(group.stats().activation.current, 0);
            }
            if (r != 0) return;
            stats[checkpoints] = group.stats();
            gathers[checkpoints] = recorded.subjects(r, "all_gather");
            reductions[checkpoints] = recorded.subjects(r, "reduce_scatter");
            EXPECT_LT(stats[checkpoints].whole.peak, whole_bytes_of(net));
          },
          recorded.options);
    }
    EXPECT_EQ(gathers[0], gathers[1]);
    EXPECT_EQ(reductions[0], reductions[1]);
    EXPECT_EQ(stats[0].whole.peak, stats[1].whole.peak);
    EXPECT_EQ(stats[0].gradient.peak, stats[1].gradient.peak);
  }
}

// As of a mask that all blocks take.
TEST(ActivationSharded, AnInputOfSeveralPartsCountsOnceUntilTheLastOfThemIsDone) {
  const auto training = training_with(plain);
  std::vector<std::shared_ptr<SmallNetImpl>> nets;
  for (int r = 0; r < 2; ++r) nets.push_back(build_model(training));
  run_thread_ranks(2, [&](int r) {
    auto& net = *nets[static_cast<size_t>(r)];
    const auto group = shard_blocks(net);
    const auto mask = torch::ones({11}, torch::kDouble);
    torch::Tensor loss;
    {
      const ForwardScope scope(group);
      auto h = torch::tanh(net.first(torch::ones({2, 5}, torch::kDouble)));
      for (auto& block : *net.blocks)
        h = activation_checkpoint(
            [&block](const torch::Tensor& x, const torch::Tensor& factor) {
              return block->as<SmallBlock>()->forward(x * factor);
            },
            h, mask);
      loss = h.sum();
    }
    EXPECT_EQ(group.stats().activation.current, 3 * 2 * 11 * 8 + 11 * 8);
    loss.backward();
    EXPECT_EQ(group.stats().activation.current, 0);
  });
}

TEST(ActivationSharded, AnErrorInBackwardNamesTheRankAndTheModelTrainsOnAfterReset) {
  const auto training = training_with(computed_again);
  std::vector<std::shared_ptr<SmallNetImpl>> nets;
  for (int r = 0; r < 2; ++r) nets.push_back(build_model(training));
  run_thread_ranks(2, [&](int r) {
    auto& net = *nets[static_cast<size_t>(r)];
    const auto group = shard_blocks(net);
    torch::Tensor loss, h;
    {
      const ForwardScope scope(group);
      h = torch::tanh(net.first(torch::ones({2, 5}, torch::kDouble)));
      loss = run_blocks(net, h, computed_again).sum();
    }
    {
      const torch::NoGradGuard no_grad;
      h.add_(1);
    }
    try {
      loss.backward();
      ADD_FAILURE() << "an input was written";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(c10::str("[fsdp rank ", r, "/2] activation_checkpoint: ")));
    }
    group.reset_iter_state();
    {
      const ForwardScope scope(group);
      loss = loss_with(net, {0, 2 * r, 2}, computed_again);
    }
    loss.backward();
    for (const auto& parameter : net.parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

}  // namespace
}  // namespace fsdp::test
