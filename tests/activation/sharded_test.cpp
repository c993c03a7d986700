// Compares steps with activation_checkpoint on sharded parameters with the same steps without it: bits, bytes and
// gathers.

#include <fsdp/activation_checkpoint.h>
#include <gmock/gmock.h>

#include "support/recorded_ranks.h"
#include "support/small_net.h"

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

// Expects on every rank that steps with recomputed parts have the bits of the same steps without.
template <class M>
void expect_bits_of_the_plain_steps(const Training<M>& expected, const Training<M>& training, int world) {
  SCOPED_TRACE(c10::str("world ", world));
  const auto outcome_of = [](const Training<M>& steps) {
    const auto net = build_alike([&] { return build_model(steps); });
    return train_sharded(steps, *net);
  };
  run_thread_ranks(world, [&](int) { expect_same_bits(outcome_of(expected), outcome_of(training)); });
}

void expect_bits_with_options(const FullyShardOptions& options, int world) {
  expect_bits_of_the_plain_steps(training_with(plain, options), training_with(computed_again, options), world);
}

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsInEveryWorldAndStrategy) {
  for (int world : worlds_up_to(4)) expect_bits_with_options({}, world);
  for (const auto strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
    expect_bits_with_options({.strategy = strategy}, 3);
  for (const auto& reshard : {Reshard::always(), Reshard::never(), Reshard::within(2)})
    expect_bits_with_options({.reshard_after_forward = reshard}, 4);
}

TEST(ActivationSharded, BlocksHaveTheBitsOfThePlainStepsOverBothAxesAndWithMixedPrecision) {
  auto expected = training_with(plain), training = training_with(computed_again);
  for (auto* over_axes : {&expected, &training})
    over_axes->shard = [](SmallNetImpl& net) {
      return shard_blocks(net, {.mesh = init_device_mesh({2, 2}, {"replicate", "shard"})});
    };
  expect_bits_of_the_plain_steps(expected, training, 4);
  const FullyShardOptions low{.mp_policy =
                                  MixedPrecisionPolicy{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat}};
  expected = training_with(plain, low), training = training_with(computed_again, low);
  in_float32(expected), in_float32(training);
  expect_bits_of_the_plain_steps(expected, training, 3);
}

// Groups are nested. The outer part recomputes two of them, and each part inside it recomputes one.
TEST(ActivationSharded, PartsInsidePartsOverGroupsInsideGroupsHaveTheBitsOfThePlainSteps) {
  const auto nested = [](bool checkpoints) {
    auto training = training_with(plain);
    training.shard = [](SmallNetImpl& net) {
      for (auto& block : *net.blocks) {
        fully_shard(*block->as<SmallBlock>()->in);
        fully_shard(*block);
      }
      return fully_shard(static_cast<torch::nn::Module&>(net));
    };
    training.loss = [=](SmallNetImpl& net, const Batch& batch) {
      const auto part = [&](const torch::Tensor& h) {
        return run_blocks(net, torch::tanh(net.first(h)), checkpoints ? computed_again : plain);
      };
      const auto x = samples(batch, {5});
      return torch::mse_loss(net.head(checkpoints ? activation_checkpoint(part, x) : part(x)), samples(batch, {3}));
    };
    return training;
  };
  expect_bits_of_the_plain_steps(nested(false), nested(true), 3);
}

torch::Tensor twice(SmallBlock block, const torch::Tensor& x) { return block(torch::tanh(block(block(x)))); }

// Returns the gradient of an energy of the block with respect to the input.
torch::Tensor slope_at(SmallBlock block, const torch::Tensor& x) {
  return torch::autograd::grad({torch::tanh(block(x)).square().sum()}, {x}, {}, /*retain_graph=*/true,
                               /*create_graph=*/true)[0];
}

TEST(ActivationSharded, PartsOfOtherKindsHaveTheBitsOfThePlainSteps) {
  struct Kind {
    const char* name;
    Wrap expected, again;
  };
  const Kind kinds[] = {
      {"a block inside and outside of a part", twice,
       [](SmallBlock block, const auto& x) { return block(torch::tanh(activation_checkpoint(block, block(x)))); }},
      {"a block that differentiates inside", slope_at,
       [](SmallBlock block, const auto& x) {
         return activation_checkpoint([block](const torch::Tensor& h) { return slope_at(block, h); }, x);
       }},
      {"kept products", plain,
       [](SmallBlock block, const auto& x) { return activation_checkpoint({.keeps_results = is_product}, block, x); }},
      {"a handle", plain, [](SmallBlock block, const auto& x) {
         return activation_checkpoint(Sharded<SmallBlock>(block, group_of(*block)), x);
       }}};
  for (const auto& [name, expected, again] : kinds) {
    SCOPED_TRACE(name);
    expect_bits_of_the_plain_steps(training_with(expected), training_with(again), 3);
  }
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
  expect_bits_of_the_plain_steps(training(false), training(true), 3);
}

// A model in double precision in which each block is a param group.
struct ShardedNet {
  std::shared_ptr<SmallNetImpl> net = alike_small_net(torch::kDouble);
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
  run_thread_ranks(3, [&](int) { expect_same_bits(gradients_with(plain), gradients_with(computed_again)); });
}

// Forward keeps the input of each block. Backward gathers as often, and holds as many bytes, as without recomputation.
TEST(ActivationSharded, BytesAndGathersAreThoseOfThePlainStepsAndActivationsTheInputs) {
  constexpr int kWorld = 3;
  std::array<GroupStats, 2> stats;
  std::array<std::vector<std::string>, 2> gathers, reductions;
  for (bool checkpoints : {false, true}) {
    Recorded recorded(kWorld);
    run_thread_ranks_with(kWorld, recorded.options, [&](int r) {
      const ShardedNet sharded;
      for (int step = 0; step < 2; ++step) {
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
      EXPECT_LT(stats[checkpoints].whole.peak, stats[checkpoints].parameter_numel * 8);
    });
  }
  EXPECT_EQ(gathers[0], gathers[1]);
  EXPECT_EQ(reductions[0], reductions[1]);
  EXPECT_EQ(stats[0].whole.peak, stats[1].whole.peak);
  EXPECT_EQ(stats[0].gradient.peak, stats[1].gradient.peak);
}

// Such an input is, for example, a mask that all blocks take.
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
