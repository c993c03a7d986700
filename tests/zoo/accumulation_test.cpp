// Tests of gradients that accumulate over micro-batches, and of parameters that are unused, frozen or unfrozen.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

struct AccumulationNet : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6)), left = register_module("left", nn::Linear(6, 3));
  nn::Linear right = register_module("right", nn::Linear(6, 3)), never = register_module("never", nn::Linear(6, 3));
};

Tensor branches_loss(AccumulationNet& net, const Batch& batch, bool left = true, bool right = true) {
  auto h = torch::tanh(net.in->forward(samples(batch, {4})));
  Tensor output = torch::zeros({batch.count, 3}, torch::kDouble);
  if (left) output = output + net.left->forward(h);
  if (right) output = output + net.right->forward(h);
  return distance_from_targets(output, batch);
}

Tensor learn_branches(AccumulationNet& net, const Role& role, int step, bool left = true, bool right = true) {
  return backward_of(role.whole(net, [&] { return branches_loss(net, role.batch(step), left, right); }));
}

// Makes param groups of `in` and of the two branches. Only `never` remains for the root's group.
void shard_used_children(nn::Module& module, const FullyShardOptions& options) {
  auto& net = dynamic_cast<AccumulationNet&>(module);
  for (auto* linear : {&net.in, &net.left, &net.right}) fully_shard(**linear, options);
  fully_shard(module, options);
}

void expect_same_in_one_group_and_in_several(const Run<AccumulationNet>& run) {
  for (auto* shard : {shard_as_one_group, shard_used_children}) {
    auto program = program_of<AccumulationNet>(run, shard);
    program.largest_world = 8;
    expect_equals_unsharded(program);
  }
}

// In every second step, each micro-batch is reduced.
TEST(ZooAccumulation, MicroBatchesReducedWithTheLastEqualTheUnshardedRun) {
  expect_same_in_one_group_and_in_several([](AccumulationNet& net, const Role& role) {
    return descend(net.parameters(), [&](int step) {
      auto sum = torch::zeros({}, torch::kDouble);
      for (int micro = 0; micro < 3; ++micro) {
        if (role.is_sharded()) group_of(net).set_requires_gradient_sync(step % 2 == 1 || micro == 2);
        sum += backward_of(role.whole(net, [&] { return branches_loss(net, role.batch(3 * step + micro)) / 3; }));
      }
      return sum;
    });
  });
}

TEST(ZooAccumulation, NoSyncGuardKeepsWholeGradientsUntilTheNextBackward) {
  expect_same_in_one_group_and_in_several([](AccumulationNet& net, const Role& role) {
    descend(net.parameters(), [&](int step) {
      const auto learn_left = [&] { learn_branches(net, role, 2 * step, true, false); };
      if (role.is_sharded()) {
        const auto guard = group_of(net).no_sync();
        learn_left();
        for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
      } else {
        learn_left();
      }
      // The branch `left` got its gradient under no_sync() only, but the next backward reduces it, too.
      return learn_branches(net, role, 2 * step + 1, false, true);
    });
    return Values{role.gradient(net.left->weight), role.gradient(net.right->weight)};
  });
}

TEST(ZooAccumulation, ParameterUsedByNoRankKeepsItsGradient) {
  expect_same_in_one_group_and_in_several([](AccumulationNet& net, const Role& role) {
    auto optimizer = torch::optim::AdamW(net.parameters(), 0.01);
    descend_by(
        optimizer,
        [&](int step) {
          auto loss = learn_branches(net, role, step);
          EXPECT_FALSE(net.never->weight.grad().defined());
          return loss;
        },
        /*steps=*/2);
    // An earlier backward's gradient stays if the next backward does not reach the parameter.
    learn_branches(net, role, 2, true, false);
    return Values{role.gradient(net.left->weight), role.gradient(net.right->weight), role.gradient(net.never->weight)};
  });
}

// Rank 0 uses `left`, the other ranks use `right`. Every rank gets the sum, to which ranks that did not use a branch
// add zeros.
TEST(ZooAccumulation, ParameterUsedBySomeRanksGetsTheirSumEverywhere) {
  const auto run = [](AccumulationNet& net, const Role& role) {
    Values values;
    descend(net.parameters(), [&](int step) {
      for_each_rank_of(role, [&](const Role& rank, double part) {
        const auto loss = [&] { return branches_loss(net, rank.batch(step), rank.rank == 0, rank.rank != 0); };
        (role.whole(net, loss) * part).backward();
      });
      for (const auto& parameter : {net.left->weight, net.right->bias, net.never->bias})
        values.push_back(role.gradient(parameter));
      return Tensor();
    });
    return values;
  };
  expect_same_sharded<AccumulationNet>(run, shard_as_one_group);
}

TEST(ZooAccumulation, ParametersFrozenAndUnfrozenBetweenStepsEqualTheUnshardedRun) {
  expect_same_in_one_group_and_in_several([](AccumulationNet& net, const Role& role) {
    const auto backward = [&](int step) {
      set_trainable(*net.in, step % 2 == 0);
      net.left->weight.set_requires_grad(step % 3 != 1);
      auto loss = learn_branches(net, role, step);
      EXPECT_EQ(net.in->weight.grad().defined(), step % 2 == 0);
      return loss;
    };
    return descend(net.parameters(), backward, /*steps=*/5);
  });
}

// autograd::grad reduces no gradients except those of its inputs, not even gradients that wait for their reduction.
TEST(ZooAccumulation, AutogradGradLeavesGradientsThatWaitAlone) {
  run_thread_ranks(2, [](int r) {
    auto linear = build_alike([] { return nn::Linear(4, 3); });
    auto group = fully_shard(*linear);
    const auto x = torch::full({2, 4}, r + 1.0, torch::requires_grad());
    const auto loss = [&] { return in_scope(group, [&] { return linear->forward(x).square().sum(); }); };
    {
      auto guard = group.no_sync();
      loss().backward();
    }
    const auto before = group.stats().reductions;
    torch::autograd::grad({loss()}, {x});
    EXPECT_EQ(group.stats().reductions, before);
    EXPECT_FALSE(linear->weight.grad().defined());
    loss().backward();
    EXPECT_EQ(group.stats().reductions, before + 1);
    EXPECT_TRUE(linear->weight.grad().defined());
  });
}

}  // namespace
}  // namespace fsdp::test
