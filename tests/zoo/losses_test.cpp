// Tests of losses that involve several models.

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

nn::Sequential mlp(int64_t in, int64_t hidden, int64_t out) {
  return nn::Sequential(nn::Linear(in, hidden), nn::Tanh(), nn::Linear(hidden, out));
}

// Models beside each other. Each one is sharded separately, with a param group per layer.
struct Several : nn::Module {
  nn::Sequential a, b;
  Several(nn::Sequential first, nn::Sequential second)
      : a(register_module("a", std::move(first))), b(register_module("b", std::move(second))) {}
};

void expect_same_of_several(const std::function<std::shared_ptr<Several>()>& build, Run<Several> run) {
  auto program = program_of<Several>(std::move(run), [](nn::Module& m, const FullyShardOptions& options) {
    for (const auto& model : m.children()) shard_children_then_root(*model, options);
  });
  program.build = build;
  program.largest_world = 8;
  expect_equals_unsharded(program);
}

Tensor called_in_scope(nn::Sequential& model, const Role& role, const Tensor& x) {
  return role.whole(*model, [&] { return model->forward(x); });
}

Tensor binary_loss(const Tensor& logits, double label) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
}

// The discriminator learns from detached fakes, then the generator learns through the discriminator.
TEST(ZooLosses, AlternatingGanStepsEqualTheUnshardedRun) {
  const auto run = [](Several& m, const Role& role) {
    auto &generator = m.a, &discriminator = m.b;
    auto g_optimizer = sgd(generator->parameters()), d_optimizer = sgd(discriminator->parameters());
    Values losses;
    for (int step = 0; step < 3; ++step) {
      auto noise = samples(role.batch(step), {3}), real = samples(role.batch(step + 50), {4});
      const auto judge = [&](const Tensor& x, double label) {
        return binary_loss(called_in_scope(discriminator, role, x), label);
      };
      d_optimizer.zero_grad();
      auto fake = called_in_scope(generator, role, noise).detach();
      losses.push_back(backward_of(judge(real, 1.0) + judge(fake, 0.0)));
      d_optimizer.step();
      g_optimizer.zero_grad();
      losses.push_back(backward_of(judge(called_in_scope(generator, role, noise), 1.0)));
      g_optimizer.step();
    }
    return losses;
  };
  expect_same_of_several([] { return std::make_shared<Several>(mlp(3, 7, 4), mlp(4, 5, 1)); }, run);
}

// The frozen model (b) judges the other model's outputs, so backward goes through its weights. It is also the teacher,
// whose own output needs no gradient.
TEST(ZooLosses, AFrozenModelAsCriticAndAsTeacherEqualsTheUnshardedRun) {
  const auto build = [] {
    auto m = std::make_shared<Several>(mlp(3, 7, 4), mlp(4, 5, 2));
    set_trainable(*m->b, false);
    return m;
  };
  expect_same_of_several(build, [](Several& m, const Role& role) {
    auto losses = descend(m.a->parameters(), [&](int step) {
      const auto judged = called_in_scope(m.b, role, called_in_scope(m.a, role, samples(role.batch(step), {3})));
      Tensor target;
      {
        torch::AutoGradMode with_grad(step % 2 == 0);
        target = called_in_scope(m.b, role, samples(role.batch(step + 50), {4}));
      }
      return backward_of(distance_from_targets(judged, role.batch(step)) + torch::mse_loss(judged, target));
    });
    for (const auto& parameter : m.b->parameters()) EXPECT_FALSE(parameter.grad().defined());
    return losses;
  });
}

// A trunk with two heads. Trunk, actor and critic are sharded separately, and the losses are added.
struct ActorCritic : nn::Module {
  struct Headed : nn::Module {
    nn::Sequential trunk;
    nn::Linear head;
    Headed(nn::Sequential shared, int64_t outputs)
        : trunk(register_module("trunk", std::move(shared))), head(register_module("head", nn::Linear(6, outputs))) {}
    Tensor forward(const Tensor& x) { return head->forward(trunk->forward(x)); }
  };
  nn::Sequential trunk =
      register_module("trunk", nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 6), nn::Tanh()));
  std::shared_ptr<Headed> actor = register_module("actor", std::make_shared<Headed>(trunk, 3));
  std::shared_ptr<Headed> critic = register_module("critic", std::make_shared<Headed>(trunk, 1));

  // Lists each parameter once, because the module tree reaches the trunk three times.
  std::vector<Tensor> distinct_parameters() const {
    auto distinct = trunk->parameters();
    for (const auto* head : {&actor->head, &critic->head})
      for (const auto& parameter : (*head)->parameters()) distinct.push_back(parameter);
    return distinct;
  }
};

TEST(ZooLosses, ActorAndCriticOverASharedTrunkInTwoScopesOrInOneEqualTheUnshardedRun) {
  for (const bool in_one_scope : {false, true}) {
    const auto shard = [=](nn::Module& m, const FullyShardOptions& options) {
      for (const auto& child : m.children()) fully_shard(*child, options);
      if (in_one_scope) fully_shard(m, options);
    };
    const auto run = [=](ActorCritic& m, const Role& role) {
      return descend(m.distinct_parameters(), [&](int step) {
        const auto actor = [&] { return loss_of(*m.actor, role.batch(step)); };
        const auto critic = [&] { return loss_of(*m.critic, role.batch(step)); };
        return backward_of(in_one_scope ? role.whole(m, [&] { return actor() + critic(); })
                                        : role.whole(*m.actor, actor) + role.whole(*m.critic, critic));
      });
    };
    expect_same_sharded<ActorCritic>(run, shard);
  }
}

// One operator takes parameters of models from both process groups. Each process group keeps its own queues and memory.
TEST(ZooLosses, ModelsOverTwoProcessGroupsInOneOperatorEqualTheUnshardedRun) {
  const auto loss_of_three = [](const std::vector<nn::Linear>& m) {
    return torch::mse_loss(m[0]->weight, m[1]->weight) + (m[0]->weight + m[2]->weight).square().sum() +
           m[1]->weight.sum();
  };
  const auto three_models = [] {
    std::vector<nn::Linear> models;
    torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      models.emplace_back(nn::LinearOptions(3, 5).bias(false));
      models.back()->weight.copy_(torch::linspace(-1, 1 + i, 15).view({5, 3}));
    }
    return models;
  };
  const auto unsharded = three_models();
  loss_of_three(unsharded).backward();
  auto store = c10::make_intrusive<c10d::HashStore>();
  run_thread_ranks(3, [&](int r) {
    auto m = three_models();
    const FullyShardOptions second{.process_group = make_thread_rank(store, r, 3, {})};
    auto a = fully_shard(*m[0]), b = fully_shard(*m[1], second), c = fully_shard(*m[2], second);
    for (int step = 0; step < 2; ++step) {
      for (auto& linear : m) linear->zero_grad();
      Tensor loss;
      {
        ForwardScope of_a(a), of_b(b), of_c(c);
        loss = loss_of_three(m);
      }
      loss.backward();
      for (size_t i : {0, 1, 2})
        EXPECT_LT(relative_difference(unsharded[i]->weight.grad(), full_grad(m[i]->weight)), 1e-6) << i;
    }
    barrier();
  });
}

}  // namespace
}  // namespace fsdp::test
