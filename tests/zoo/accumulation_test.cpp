// Gradients accumulated over micro-batches, and parameters that are unused, frozen or unfrozen.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct AccumulationNet : nn::Module {
  nn::Linear in{4, 6}, left{6, 3}, right{6, 3}, never{6, 3};
  AccumulationNet() {
    register_module("in", in);
    register_module("left", left);
    register_module("right", right);
    register_module("never", never);
  }
};

torch::Tensor loss_of(AccumulationNet& net, const Batch& batch, bool left = true, bool right = true) {
  auto h = torch::tanh(net.in->forward(samples(batch, {4})));
  torch::Tensor output = torch::zeros({batch.count, 3}, torch::kDouble);
  if (left) output = output + net.left->forward(h);
  if (right) output = output + net.right->forward(h);
  return distance_from_targets(output, batch);
}

Program<AccumulationNet> accumulation_program(std::function<Values(AccumulationNet&, const Role&)> run) {
  Program<AccumulationNet> program;
  program.build = [] { return std::make_shared<AccumulationNet>(); };
  program.shard = shard_as_one_group;
  program.run = std::move(run);
  return program;
}

// `in` and the two branches are groups; `never` and nothing else belongs to the root.
void shard_used_children(AccumulationNet& net, const FullyShardOptions& options) {
  for (auto* linear : {&net.in, &net.left, &net.right}) fully_shard(**linear, options);
  fully_shard(static_cast<nn::Module&>(net), options);
}

// Three micro-batches per step; `before` sees the number of each before its forward.
template <class Before>
Values accumulate(AccumulationNet& net, const Role& role, const Before& before) {
  auto optimizer = sgd(net.parameters());
  Values losses;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < 3; ++micro) {
      before(micro);
      auto loss = role.whole(net, [&] { return loss_of(net, role.batch(3 * step + micro)) / 3; });
      loss.backward();
      losses.push_back(loss.detach());
    }
    optimizer.step();
  }
  return losses;
}

TEST(ZooAccumulation, MicroBatchesReducedEachTimeEqualTheUnshardedRun) {
  auto program =
      accumulation_program([](AccumulationNet& net, const Role& role) { return accumulate(net, role, [](int) {}); });
  expect_equals_unsharded(program);
  program.shard = shard_used_children;
  expect_equals_unsharded(program);
}

TEST(ZooAccumulation, MicroBatchesReducedWithTheLastEqualTheUnshardedRun) {
  auto program = accumulation_program([](AccumulationNet& net, const Role& role) {
    return accumulate(net, role, [&](int micro) {
      if (role.is_sharded()) group_of(net).set_requires_gradient_sync(micro == 2);
    });
  });
  expect_equals_unsharded(program);
  program.shard = shard_used_children;
  expect_equals_unsharded(program, worlds_up_to(8));
}

TEST(ZooAccumulation, NoSyncGuardKeepsWholeGradientsUntilTheNextBackward) {
  auto program = accumulation_program([](AccumulationNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      {
        std::optional<Group> group;
        if (role.is_sharded()) group = group_of(net);
        auto backward = [&] {
          role.whole(net, [&] { return loss_of(net, role.batch(2 * step), true, false); }).backward();
        };
        if (group) {
          auto guard = group->no_sync();
          backward();
          for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
        } else {
          backward();
        }
      }
      // The branch `left` got its gradient under the guard only; it is handed out all the same.
      role.whole(net, [&] { return loss_of(net, role.batch(2 * step + 1), false, true); }).backward();
      optimizer.step();
    }
    return Values{role.gradient(net.left->weight), role.gradient(net.right->weight)};
  });
  expect_equals_unsharded(program);
  program.shard = shard_used_children;
  expect_equals_unsharded(program);
}

TEST(ZooAccumulation, ParameterUsedByNoRankKeepsItsGradient) {
  auto program = accumulation_program([](AccumulationNet& net, const Role& role) {
    auto optimizer = torch::optim::AdamW(net.parameters(), 0.01);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      role.whole(net, [&] { return loss_of(net, role.batch(step)); }).backward();
      EXPECT_FALSE(net.never->weight.grad().defined());
      optimizer.step();
    }
    // A gradient of an earlier backward stays when the next one does not reach the parameter.
    role.whole(net, [&] { return loss_of(net, role.batch(2), true, false); }).backward();
    return Values{role.gradient(net.left->weight), role.gradient(net.right->weight), role.gradient(net.never->weight)};
  });
  expect_equals_unsharded(program);
  program.shard = shard_used_children;
  expect_equals_unsharded(program);
}

// Rank 0 uses `left`, the others `right`: each gets the sum, zeros from those that did not use it.
TEST(ZooAccumulation, ParameterUsedBySomeRanksGetsTheirSumEverywhere) {
  auto program = accumulation_program([](AccumulationNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values values;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto share = [&](int rank) {
        auto batch = Role{role.world, rank, role.samples_per_rank}.batch(step);
        return loss_of(net, batch, rank == 0, rank != 0);
      };
      if (role.is_sharded())
        role.whole(net, [&] { return share(role.rank); }).backward();
      else
        for (int r = 0; r < role.world; ++r) (share(r) / role.world).backward();
      for (const auto& parameter : {net.left->weight, net.right->bias, net.never->bias})
        values.push_back(role.gradient(parameter));
      optimizer.step();
    }
    return values;
  });
  expect_equals_unsharded(program);
}

void set_trainable(nn::Module& module, bool trainable) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(trainable);
}

TEST(ZooAccumulation, ParametersFrozenFromTheStartEqualTheUnshardedRun) {
  auto program = accumulation_program([](AccumulationNet& net, const Role& role) {
    return train(net, role, [](AccumulationNet& m, const Batch& batch) { return loss_of(m, batch); });
  });
  program.build = [] {
    auto net = std::make_shared<AccumulationNet>();
    set_trainable(*net->in, false);
    net->left->bias.set_requires_grad(false);
    return net;
  };
  expect_equals_unsharded(program);
  program.shard = shard_used_children;
  expect_equals_unsharded(program);
}

TEST(ZooAccumulation, ParametersFrozenAndUnfrozenBetweenStepsEqualTheUnshardedRun) {
  auto program = accumulation_program([](AccumulationNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 6; ++step) {
      set_trainable(*net.in, step % 2 == 0);
      net.left->weight.set_requires_grad(step % 3 != 1);
      optimizer.zero_grad();
      auto loss = role.whole(net, [&] { return loss_of(net, role.batch(step)); });
      loss.backward();
      EXPECT_EQ(net.in->weight.grad().defined(), step % 2 == 0);
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  });
  expect_equals_unsharded(program);
  program.shard = shard_used_children;
  expect_equals_unsharded(program);
}

TEST(ZooAccumulation, ModelWithNothingToTrainRunsForwardOnly) {
  auto program = accumulation_program([](AccumulationNet& net, const Role& role) {
    return Values{role.whole(net, [&] { return loss_of(net, role.batch(0)); })};
  });
  program.build = [] {
    auto net = std::make_shared<AccumulationNet>();
    set_trainable(*net, false);
    return net;
  };
  expect_equals_unsharded(program);
}

// autograd::grad reduces nothing outside its inputs, not even gradients that wait for their reduction.
TEST(ZooAccumulation, AutogradGradLeavesGradientsThatWaitAlone) {
  run_thread_ranks(2, [](int r) {
    auto linear = build_alike([] { return nn::Linear(4, 3); });
    auto group = fully_shard(*linear);
    const auto x = torch::full({2, 4}, r + 1.0, torch::requires_grad());
    const auto loss = [&] {
      ForwardScope scope(group);
      return linear->forward(x).square().sum();
    };
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
