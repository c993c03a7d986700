// Several models in one loss, and losses made of gradients of the model.

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

nn::Sequential mlp(int64_t in, int64_t hidden, int64_t out) {
  return nn::Sequential(nn::Linear(in, hidden), nn::Tanh(), nn::Linear(hidden, out));
}

// Models side by side; each is sharded for itself, with a group per layer.
struct Several : nn::Module {
  nn::Sequential a, b;
  Several(nn::Sequential first, nn::Sequential second) : a(std::move(first)), b(std::move(second)) {
    register_module("a", a);
    register_module("b", b);
  }
};

Program<Several> several(std::function<std::shared_ptr<Several>()> build,
                         std::function<Values(Several&, const Role&)> run) {
  Program<Several> program;
  program.build = std::move(build);
  program.shard = [](Several& m, const FullyShardOptions& options) {
    shard_children_then_root(*m.a, options);
    shard_children_then_root(*m.b, options);
  };
  program.run = std::move(run);
  return program;
}

torch::Tensor binary_loss(const torch::Tensor& logits, double label) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
}

// The discriminator learns from detached fakes, then the generator through the discriminator.
TEST(ZooLosses, AlternatingGanStepsEqualTheUnshardedRun) {
  auto run = [](Several& m, const Role& role) {
    auto &generator = m.a, &discriminator = m.b;
    auto g_optimizer = sgd(generator->parameters()), d_optimizer = sgd(discriminator->parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      auto noise = samples(role.batch(step), {3}), real = samples(role.batch(step + 50), {4});
      auto generate = [&] { return role.whole(*generator, [&] { return generator->forward(noise); }); };
      auto judge = [&](const torch::Tensor& x) {
        return role.whole(*discriminator, [&] { return discriminator->forward(x); });
      };
      d_optimizer.zero_grad();
      auto d_loss = binary_loss(judge(real), 1.0) + binary_loss(judge(generate().detach()), 0.0);
      d_loss.backward();
      d_optimizer.step();
      g_optimizer.zero_grad();
      auto g_loss = binary_loss(judge(generate()), 1.0);
      g_loss.backward();
      g_optimizer.step();
      losses.push_back(d_loss.detach());
      losses.push_back(g_loss.detach());
    }
    return losses;
  };
  auto program = several([] { return std::make_shared<Several>(mlp(3, 7, 4), mlp(4, 5, 1)); }, run);
  expect_equals_unsharded(program);
  expect_equals_unsharded(program, worlds_up_to(8));
}

// The teacher (a) is frozen: its output needs no gradient, with and without NoGradGuard.
TEST(ZooLosses, DistillationFromAFrozenTeacherEqualsTheUnshardedRun) {
  auto run = [](Several& m, const Role& role) {
    auto optimizer = sgd(m.b->parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto x = samples(role.batch(step), {3});
      auto target = role.whole(*m.a, [&] {
        std::optional<torch::NoGradGuard> no_grad;
        if (step % 2 == 1) no_grad.emplace();
        return m.a->forward(x);
      });
      auto loss = torch::mse_loss(role.whole(*m.b, [&] { return m.b->forward(x); }), target);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    for (const auto& parameter : m.a->parameters()) EXPECT_FALSE(parameter.grad().defined());
    return losses;
  };
  auto build = [] {
    auto m = std::make_shared<Several>(mlp(3, 7, 2), mlp(3, 4, 2));
    for (auto& parameter : m->a->parameters()) parameter.set_requires_grad(false);
    return m;
  };
  expect_equals_unsharded(several(build, run));
}

// The loss is measured behind a frozen network, so backward goes through its weights.
TEST(ZooLosses, BackwardThroughAFrozenCriticEqualsTheUnshardedRun) {
  auto run = [](Several& m, const Role& role) {
    auto optimizer = sgd(m.a->parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto features = role.whole(*m.a, [&] { return m.a->forward(samples(role.batch(step), {3})); });
      auto loss = distance_from_targets(role.whole(*m.b, [&] { return m.b->forward(features); }), role.batch(step));
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  };
  auto build = [] {
    auto m = std::make_shared<Several>(mlp(3, 7, 4), mlp(4, 5, 2));
    for (auto& parameter : m->b->parameters()) parameter.set_requires_grad(false);
    return m;
  };
  expect_equals_unsharded(several(build, run));
}

// Two heads over one trunk; trunk, actor and critic are sharded separately and the losses are added.
struct ActorCritic : nn::Module {
  struct Headed : nn::Module {
    nn::Sequential trunk;
    nn::Linear head;
    Headed(nn::Sequential shared, int64_t outputs) : trunk(std::move(shared)), head(6, outputs) {
      register_module("trunk", trunk);
      register_module("head", head);
    }
    torch::Tensor forward(const torch::Tensor& x) { return head->forward(trunk->forward(x)); }
  };
  nn::Sequential trunk = nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 6), nn::Tanh());
  std::shared_ptr<Headed> actor, critic;
  ActorCritic() {
    register_module("trunk", trunk);
    actor = register_module("actor", std::make_shared<Headed>(trunk, 3));
    critic = register_module("critic", std::make_shared<Headed>(trunk, 1));
  }
};

// Each parameter once: the module tree reaches the trunk three times.
std::vector<torch::Tensor> distinct_parameters(const ActorCritic& m) {
  auto parameters = m.trunk->parameters();
  for (const auto* head : {&m.actor->head, &m.critic->head})
    for (const auto& parameter : (*head)->parameters()) parameters.push_back(parameter);
  return parameters;
}

Program<ActorCritic> actor_critic_program(bool in_one_scope) {
  Program<ActorCritic> program;
  program.build = [] { return std::make_shared<ActorCritic>(); };
  program.shard = [=](ActorCritic& m, const FullyShardOptions& options) {
    fully_shard(*m.trunk, options);
    fully_shard(*m.actor, options);
    fully_shard(*m.critic, options);
    if (in_one_scope) fully_shard(static_cast<nn::Module&>(m), options);
  };
  program.run = [=](ActorCritic& m, const Role& role) {
    auto optimizer = sgd(distinct_parameters(m));
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto x = samples(role.batch(step), {4});
      auto loss_of = [&](ActorCritic::Headed& model) {
        return distance_from_targets(model.forward(x), role.batch(step));
      };
      auto loss = in_one_scope ? role.whole(m, [&] { return loss_of(*m.actor) + loss_of(*m.critic); })
                               : role.whole(*m.actor, [&] { return loss_of(*m.actor); }) +
                                     role.whole(*m.critic, [&] { return loss_of(*m.critic); });
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  };
  return program;
}

TEST(ZooLosses, ActorAndCriticOverASharedTrunkInTwoScopesEqualTheUnshardedRun) {
  expect_equals_unsharded(actor_critic_program(false));
}

TEST(ZooLosses, ActorAndCriticOverASharedTrunkInOneScopeEqualTheUnshardedRun) {
  expect_equals_unsharded(actor_critic_program(true));
}

// Forces are the negative gradient of the energy by the positions, taken inside forward.
struct ForceModel : nn::Module {
  nn::Sequential first = mlp(3, 6, 5), second = mlp(5, 4, 1);
  ForceModel() {
    register_module("first", first);
    register_module("second", second);
  }
  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor positions) {
    positions = positions.detach().requires_grad_();
    auto energy = second->forward(torch::tanh(first->forward(positions)));
    auto forces =
        -torch::autograd::grad({energy.sum()}, {positions}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return {energy, forces};
  }
};

// One operator takes parameters of both; each process group keeps its own order and its own memory.
TEST(ZooLosses, ModelsOverTwoProcessGroupsInOneOperatorEqualTheUnshardedRun) {
  auto loss_of = [](nn::Linear& a, nn::Linear& b, nn::Linear& c) {
    return torch::mse_loss(a->weight, b->weight) + (a->weight + c->weight).square().sum() + b->weight.sum();
  };
  for (int world : worlds_up_to(3)) {
    torch::manual_seed(5);
    std::vector<std::vector<nn::Linear>> models(static_cast<size_t>(world) + 1);
    for (auto& model : models)
      for (int i = 0; i < 3; ++i) {
        model.emplace_back(nn::LinearOptions(3, 5).bias(false));
        torch::NoGradGuard no_grad;
        model.back()->weight.copy_(torch::linspace(-1, 1 + i, 15).view({5, 3}));
      }
    auto& unsharded = models.back();
    loss_of(unsharded[0], unsharded[1], unsharded[2]).backward();
    auto store = c10::make_intrusive<c10d::HashStore>();
    run_thread_ranks(world, [&](int r) {
      auto& m = models[static_cast<size_t>(r)];
      FullyShardOptions second;
      second.process_group = make_thread_rank(store, r, world, {});
      auto a = fully_shard(*m[0]), b = fully_shard(*m[1], second), c = fully_shard(*m[2], second);
      for (int step = 0; step < 3; ++step) {
        for (auto& linear : m) linear->zero_grad();
        torch::Tensor loss;
        {
          ForwardScope of_a(a), of_b(b), of_c(c);
          loss = loss_of(m[0], m[1], m[2]);
        }
        loss.backward();
        for (size_t i : {0, 1, 2})
          EXPECT_LT(relative_difference(unsharded[i]->weight.grad(), full_grad(m[i]->weight)), 1e-6) << i;
      }
      barrier();
    });
  }
}

TEST(ZooLosses, ForceModelEqualsTheUnshardedRun) {
  Program<ForceModel> program;
  program.build = [] { return std::make_shared<ForceModel>(); };
  program.shard = shard_children_then_root;
  program.run = [](ForceModel& model, const Role& role) {
    return train(model, role, [](ForceModel& m, const Batch& batch) {
      auto [energy, forces] = m.forward(samples(batch, {3}));
      return distance_from_targets(energy, batch) + distance_from_targets(forces, batch);
    });
  };
  expect_equals_unsharded(program);
  expect_equals_unsharded(program, worlds_up_to(8));
}

}  // namespace
}  // namespace fsdp::test
