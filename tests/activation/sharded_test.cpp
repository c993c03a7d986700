// activation_checkpoint with sharded parameters: bits, bytes and gathers beside those of the same steps without it.

#include <fsdp/activation_checkpoint.h>
#include <gmock/gmock.h>

#include "runtime/cost_net.h"
#include "runtime/param_group.h"
#include "support/axes.h"

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

// On every rank: the same steps with parts computed again and without.
template <class M>
void expect_bits_of_the_plain_steps(const Training<M>& expected, const Training<M>& training, int world) {
  SCOPED_TRACE(c10::str("world ", world));
  const auto outcome_of = [](const Training<M>& steps) {
    const auto net = build_alike([&] { return build_model(steps); });
    return train_sharded(steps, *net);
  };
  run_thread_ranks(world, [&](int) { expect_same_bits(outcome_of(expected), outcome_of(training)); });
}

template <class M>
void expect_bits_on_ranks(const Training<M>& expected, const Training<M>& training) {
  for (int world : {2, 3}) expect_bits_of_the_plain_steps(expected, training, world);
}

void expect_bits_with_options(const FullyShardOptions& options, int world) {
  expect_bits_of_the_plain_steps(training_with(plain, options), training_with(computed_again, options), world);
}

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsInEveryWorldAndStrategy) {
  for (int world : worlds_up_to(4)) expect_bits_with_options({}, world);
  for (const auto strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate}) {
    SCOPED_TRACE(c10::str(strategy));
    expect_bits_with_options({.strategy = strategy}, 3);
  }
}

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsHoweverWholeParametersStay) {
  for (const auto& reshard : {Reshard::always(), Reshard::never(), Reshard::within(2)})
    expect_bits_with_options({.reshard_after_forward = reshard}, 4);
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
  const FullyShardOptions options{
      .mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat}};
  auto expected = training_with(plain, options), training = training_with(computed_again, options);
  in_float32(expected), in_float32(training);
  expect_bits_on_ranks(expected, training);
}

// Groups inside groups, of which a part computes two again, and parts inside it one each.
TEST(ActivationSharded, PartsInsidePartsOverGroupsInsideGroupsHaveTheBitsOfThePlainSteps) {
  const auto nested = [](const Wrap& wrap) {
    auto training = training_with(wrap);
    training.shard = [](SmallNetImpl& net) {
      for (auto& block : *net.blocks) {
        fully_shard(*block->as<SmallBlock>()->in);
        fully_shard(*block);
      }
      return fully_shard(static_cast<torch::nn::Module&>(net));
    };
    training.loss = [wrap](SmallNetImpl& net, const Batch& batch) {
      const auto x = samples(batch, {5}, torch::kDouble);
      const auto part = [&net, wrap](const torch::Tensor& h) {
        return run_blocks(net, torch::tanh(net.first(h)), wrap);
      };
      const auto h =
          wrap == nullptr ? run_blocks(net, torch::tanh(net.first(x)), plain) : activation_checkpoint(part, x);
      return torch::mse_loss(net.head(h), samples(batch, {3}, torch::kDouble));
    };
    return training;
  };
  expect_bits_on_ranks(nested({}), nested(computed_again));
}

torch::Tensor twice(SmallBlock block, const torch::Tensor& x) { return block(torch::tanh(block(block(x)))); }

torch::Tensor twice_and_once_again(SmallBlock block, const torch::Tensor& x) {
  return block(torch::tanh(activation_checkpoint(block, block(x))));
}

TEST(ActivationSharded, ABlockInsideAndOutsideOfAPartHasTheBitsOfThePlainSteps) {
  expect_bits_on_ranks(training_with(twice), training_with(twice_and_once_again));
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
  expect_bits_on_ranks(training_with(slope_at), training_with(slopes_again));
}

TEST(ActivationSharded, KeptProductsHaveTheBitsOfThePlainSteps) {
  const auto selective = [](SmallBlock block, const torch::Tensor& x) {
    return activation_checkpoint({.keeps_results = is_product}, block, x);
  };
  expect_bits_on_ranks(training_with(plain), training_with(selective));
}

TEST(ActivationSharded, AHandleIsCalledAgain) {
  const auto handle_again = [](SmallBlock block, const torch::Tensor& x) {
    return activation_checkpoint(Sharded<SmallBlock>(block, group_of(*block)), x);
  };
  expect_bits_on_ranks(training_with(plain), training_with(handle_again));
}

struct TiedNetImpl : torch::nn::Module {
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(24, 12));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(12, 12));
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
      const auto part = [&net](const torch::Tensor& h) {
        return torch::linear(torch::tanh(net.middle(h)), net.words->weight);
      };
      const auto h = net.words(labels(batch, {4}, 24)).sum(1);
      return (checkpoints ? activation_checkpoint(part, h) : part(h)).square().mean();
    };
    return tied;
  };
  expect_bits_on_ranks(training(false), training(true));
}

// A model in double precision, whose blocks are groups.
struct ShardedNet {
  std::shared_ptr<SmallNetImpl> net = build_alike([] { return build_model(small_net_training()); });
  Group group = shard_blocks(*net);

  torch::Tensor loss(int step, const Wrap& wrap) const {
    const ForwardScope scope(group);
    return loss_with(*net, {step, 2 * rank(), 2}, wrap);
  }
};

TEST(ActivationSharded, MicroBatchesAndAccumulationHaveTheBitsOfThePlainOnes) {
  const auto gradients_with = [](const Wrap& wrap) {
    const ShardedNet sharded;
    for (int i = 0; i < 3; ++i) {
      sharded.group.set_requires_gradient_sync(i == 2);
      sharded.loss(i, wrap).backward();
    }
    Outcome outcome;
    for (const auto& parameter : sharded.net->parameters()) outcome.parameters.push_back(full_grad(parameter));
    return outcome;
  };
  for (int world : worlds_up_to(3))
    run_thread_ranks(world, [&](int) { expect_same_bits(gradients_with(plain), gradients_with(computed_again)); });
}

// What forward keeps is each block's input, and backward gathers as often and holds as much as without.
TEST(ActivationSharded, BytesAndGathersAreThoseOfThePlainStepsAndActivationsTheInputs) {
  for (int world : {2, 3}) {
    std::array<GroupStats, 2> stats;
    std::array<std::vector<std::string>, 2> gathers, reductions;
    for (bool checkpoints : {false, true}) {
      Recorded recorded(world);
      run_thread_ranks(
          world,
          [&](int r) {
            const ShardedNet sharded;
            for (int step = 0; step < 3; ++step) {
              sharded.net->zero_grad();
              sharded.group.reset_peak_stats();
              recorded.clear(r);
              const auto loss = sharded.loss(step, checkpoints ? computed_again : plain);
              EXPECT_EQ(sharded.group.stats().activation.current, checkpoints ? 3 * 2 * 11 * 8 : 0);
              loss.backward();
              EXPECT_EQ(sharded.group.stats().activation.current, 0);
            }
            if (r != 0) return;
            stats[checkpoints] = sharded.group.stats();
            gathers[checkpoints] = recorded.subjects(r, "all_gather");
            reductions[checkpoints] = recorded.subjects(r, "reduce_scatter");
            int64_t whole_bytes = 0;
            for (const auto& parameter : sharded.net->parameters())
              whole_bytes += c10::multiply_integers(global_sizes(parameter)) * 8;
            EXPECT_LT(stats[checkpoints].whole.peak, whole_bytes);
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
  run_thread_ranks(2, [&](int) {
    const ShardedNet sharded;
    const auto mask = torch::ones({11}, torch::kDouble);
    const auto loss = sharded.loss(0, [&](SmallBlock block, const torch::Tensor& h) {
      return activation_checkpoint(
          [part = block.get()](const torch::Tensor& x, const torch::Tensor& factor) {
            return part->forward(x * factor);
          },
          h, mask);
    });
    EXPECT_EQ(sharded.group.stats().activation.current, 3 * 2 * 11 * 8 + 11 * 8);
    loss.backward();
    EXPECT_EQ(sharded.group.stats().activation.current, 0);
  });
}

TEST(ActivationSharded, AnErrorInBackwardNamesTheRankAndTheModelTrainsOnAfterReset) {
  run_thread_ranks(2, [&](int r) {
    const ShardedNet sharded;
    torch::Tensor input_of_block;
    const auto loss = sharded.loss(0, [&](SmallBlock block, const torch::Tensor& h) {
      if (!input_of_block.defined()) input_of_block = h;
      return computed_again(block, h);
    });
    {
      const torch::NoGradGuard no_grad;
      input_of_block.add_(1);
    }
    EXPECT_THAT([&] { loss.backward(); }, testing::ThrowsMessage<UsageError>(testing::HasSubstr(
                                              c10::str("[fsdp rank ", r, "/2] activation_checkpoint: "))));
    sharded.group.reset_iter_state();
    sharded.loss(0, computed_again).backward();
    for (const auto& parameter : sharded.net->parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

}  // namespace
}  // namespace fsdp::test
