// What autograd can do besides loss.backward(): higher derivatives, gradients by name, custom functions, other threads.

#include <ATen/record_function.h>

#include <thread>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

struct AutogradNet : nn::Module {
  nn::Linear in{4, 6}, middle{6, 5}, out{5, 3};
  AutogradNet() {
    register_module("in", in);
    register_module("middle", middle);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out->forward(torch::tanh(middle->forward(torch::tanh(in->forward(x)))));
  }
};

Program<AutogradNet> autograd_program(std::function<Values(AutogradNet&, const Role&)> run) {
  Program<AutogradNet> program;
  program.build = [] { return std::make_shared<AutogradNet>(); };
  program.shard = shard_children_then_root;
  program.run = std::move(run);
  return program;
}

torch::Tensor net_loss(AutogradNet& net, const Batch& batch) {
  return distance_from_targets(net.forward(samples(batch, {4})), batch);
}

Values gradients_of(const AutogradNet& net, const Role& role) {
  Values gradients;
  for (const auto& parameter : net.parameters()) gradients.push_back(role.gradient(parameter));
  return gradients;
}

// The penalty is taken outside the scope: its backward creates a graph of the parameters once more.
TEST(ZooAutograd, GradientPenaltyOutsideTheScopeEqualsTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto x = samples(role.batch(step), {4}).requires_grad_();
      auto y = role.whole(net, [&] { return net.forward(x); });
      auto slope = grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      auto loss = y.pow(2).mean() + (slope.norm(2, 1) - 1.0).pow(2).mean();
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  }));
}

TEST(ZooAutograd, ThirdDerivativesEqualTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
                            auto x = samples(role.batch(0), {4}).requires_grad_();
                            auto y = role.whole(net, [&] { return net.forward(x).sum(); });
                            for (int i = 0; i < 2; ++i) y = grad({y}, {x}, {}, true, true)[0].pow(2).sum();
                            (y / static_cast<double>(role.batch(0).count)).backward();
                            return gradients_of(net, role);
                          }),
                          worlds_up_to(3));
}

TEST(ZooAutograd, GradByInputsLeavesGradientsOfParametersAlone) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto x = samples(role.batch(0), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x).sum(1); });
    auto slope = grad({y.mean()}, {x})[0];
    for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
    return Values{slope.pow(2).sum(0).mean() * static_cast<double>(role.batch(0).count)};
  }));
}

TEST(ZooAutograd, GradByParametersReturnsThisRanksWholeGradients) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto loss = role.whole(net, [&] { return net_loss(net, role.batch(0)); });
    auto wanted = std::vector<torch::Tensor>{net.in->weight, net.out->bias, net.middle->weight};
    auto gradients = grad({loss}, wanted);
    for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
    return gradients;
  }));
}

TEST(ZooAutograd, GradByParametersInsideTheScopeCanBeDifferentiated) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    // The mean over samples of something linear in each sample's gradient, so that ranks average.
    auto loss = role.whole(net, [&] {
      auto output = net.forward(samples(role.batch(0), {4}));
      auto gradients = grad({output.mean()}, {net.in->weight, net.middle->bias}, {}, true, true);
      return gradients[0].sum() + gradients[1].sum() + output.mean();
    });
    loss.backward();
    auto values = gradients_of(net, role);
    values.push_back(loss.detach());
    return values;
  }));
}

TEST(ZooAutograd, BackwardWithInputsReducesOnlyThose) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto loss = role.whole(net, [&] { return net_loss(net, role.batch(0)); });
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true, false, {net.middle->weight, net.in->bias});
    auto values = gradients_of(net, role);
    EXPECT_FALSE(net.out->weight.grad().defined());
    loss.backward();
    for (auto& value : gradients_of(net, role)) values.push_back(value);
    return values;
  }));
}

TEST(ZooAutograd, TwoBackwardsOverOneForwardAddTheirGradients) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto loss = role.whole(net, [&] { return net_loss(net, role.batch(0)); });
    loss.backward({}, /*retain_graph=*/true);
    auto values = gradients_of(net, role);
    loss.backward();
    for (auto& value : gradients_of(net, role)) values.push_back(value);
    return values;
  }));
}

TEST(ZooAutograd, SeveralForwardsBeforeOneBackwardEqualTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      torch::Tensor loss = torch::zeros({}, torch::kDouble);
      for (int part = 0; part < 3; ++part)
        loss = loss + role.whole(net, [&] { return net_loss(net, role.batch(3 * step + part)); });
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  }));
}

TEST(ZooAutograd, BackwardInsideTheScopeEqualsTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      auto loss = role.whole(net, [&] {
        optimizer.zero_grad();
        auto value = net_loss(net, role.batch(step));
        value.backward();
        auto again = net_loss(net, role.batch(step + 40));  // parameters are still whole
        again.backward();
        return value + again;
      });
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  }));
}

// Asks the saved parameter for its sizes before any operator has touched it in backward.
struct ScaledLinear : torch::autograd::Function<ScaledLinear> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::matmul(x, weight.t()) * static_cast<double>(weight.size(0));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto saved = context->get_saved_variables();
    auto scale = static_cast<double>(saved[1].size(0));
    auto gradient = gradients[0] * scale;
    return {torch::matmul(gradient, saved[1]), torch::matmul(gradient.t(), saved[0])};
  }
};

TEST(ZooAutograd, CustomFunctionReadingTheSizesOfASavedParameterFirstEqualsTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    return train(net, role, [](AutogradNet& m, const Batch& batch) {
      auto h = ScaledLinear::apply(samples(batch, {4}), m.in->weight);
      return distance_from_targets(ScaledLinear::apply(torch::tanh(h), m.middle->weight), batch);
    });
  }));
}

// The function is the first node of backward: nothing else has shown it the whole parameter.
TEST(ZooAutograd, CustomFunctionAsTheFirstNodeOfBackwardSeesWholeSizes) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    auto output = role.whole(net, [&] { return ScaledLinear::apply(samples(role.batch(0), {4}), net.in->weight); });
    output.backward(torch::ones_like(output) / static_cast<double>(role.batch(0).count));
    return Values{role.gradient(net.in->weight)};
  }));
}

// The backward of a variance asks its parameter for the number of elements first. It is the first node that knows a
// parameter. The runtime is one of LibTorch's observers, which programs may turn off.
void expect_node_that_asks_for_sizes_first_equals_unsharded(torch::Tensor (*variance)(const torch::Tensor&)) {
  for (bool observers : {true, false})
    expect_equals_unsharded(autograd_program([=](AutogradNet& net, const Role& role) {
      const at::RecordFunctionGuard guard(observers);
      return train(net, role, [=](AutogradNet& m, const Batch& batch) {
        auto h = torch::matmul(samples(batch, {4}), m.in->weight.t()) * m.in->bias;
        auto y = torch::mm(torch::tanh(h), m.middle->weight.t()) + m.middle->bias.exp();
        auto loss = distance_from_targets(y, batch);
        return loss + variance(m.middle->weight);  // recorded last
      });
    }));
}

TEST(ZooAutograd, NodeThatAsksForSizesFirstEqualsTheUnshardedRunWithObserversAndWithout) {
  expect_node_that_asks_for_sizes_first_equals_unsharded([](const torch::Tensor& w) { return w.var(); });
}

TEST(ZooAutograd, NodeOfSeveralResultsThatAsksForSizesFirstEqualsTheUnshardedRunToo) {
  expect_node_that_asks_for_sizes_first_equals_unsharded(
      [](const torch::Tensor& w) { return std::get<0>(torch::var_mean(w)); });
}

struct AddedBias : torch::autograd::Function<AddedBias> {
  static torch::Tensor forward(AutogradContext*, const torch::Tensor& h, const torch::Tensor& bias) { return h + bias; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], gradients[0].sum(0)};
  }
};

// The function's node has no hook, and its backward no operator on a parameter: without observers nothing comes before
// the gradient itself.
TEST(ZooAutograd, AFunctionThatReadsNothingInBackwardEqualsTheUnshardedRunWithObserversAndWithout) {
  for (bool observers : {true, false})
    expect_equals_unsharded(autograd_program([=](AutogradNet& net, const Role& role) {
      const at::RecordFunctionGuard guard(observers);
      return train(net, role, [](AutogradNet& m, const Batch& batch) {
        return distance_from_targets(AddedBias::apply(samples(batch, {6}), m.in->bias), batch);
      });
    }));
}

// Runs a layer again in backward, with a backward of its own inside the outer one.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    return torch::tanh(layer->forward(x));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* layer = reinterpret_cast<nn::LinearImpl*>(context->saved_data["layer"].toInt());
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::AutoGradMode with_grad(true);
    torch::autograd::backward({torch::tanh(layer->forward(x))}, gradients);
    return {x.grad(), torch::Tensor()};
  }
};

TEST(ZooAutograd, BackwardInsideBackwardEqualsTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    return train(net, role, [](AutogradNet& m, const Batch& batch) {
      auto h = torch::tanh(m.in->forward(samples(batch, {4})));
      return distance_from_targets(m.out->forward(Recomputed::apply(h, m.middle.get())), batch);
    });
  }));
}

// The graph leads to no parameter.
TEST(ZooAutograd, AModelOfWhichAllIsComputedAgainEqualsTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    return train(net, role, [](AutogradNet& m, const Batch& batch) {
      const auto x = samples(batch, {4}).requires_grad_();
      return distance_from_targets(Recomputed::apply(Recomputed::apply(x, m.in.get()), m.middle.get()), batch);
    });
  }));
}

TEST(ZooAutograd, ForwardOnAnotherThreadInsideTheScopeEqualsTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
    return train(net, role, [](AutogradNet& m, const Batch& batch) {
      torch::Tensor loss;
      std::thread([&] { loss = net_loss(m, batch); }).join();
      return loss;
    });
  }));
}

// One group, so that neither thread frees what the other one reads.
TEST(ZooAutograd, TwoThreadsAtOnceInsideTheScopeEqualTheUnshardedRun) {
  auto program = autograd_program([](AutogradNet& net, const Role& role) {
    return train(net, role, [](AutogradNet& m, const Batch& batch) {
      auto often = [&] {
        auto loss = net_loss(m, batch);
        for (int i = 1; i < 10; ++i) loss = loss + net_loss(m, batch);
        return loss / 20;
      };
      torch::Tensor other;
      std::thread thread([&] { other = often(); });
      auto loss = often();
      thread.join();
      return loss + other;
    });
  });
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program);
}

TEST(ZooAutograd, BackwardOnAnotherThreadEqualsTheUnshardedRun) {
  expect_equals_unsharded(autograd_program([](AutogradNet& net, const Role& role) {
                            auto optimizer = sgd(net.parameters());
                            for (int step = 0; step < 4; ++step) {
                              optimizer.zero_grad();
                              auto loss = role.whole(net, [&] { return net_loss(net, role.batch(step)); });
                              std::thread([&] { loss.backward(); }).join();
                              optimizer.step();
                            }
                            return gradients_of(net, role);
                          }),
                          worlds_up_to(3));
}

struct FrozenNet : nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::linspace(-1, 2, 9, torch::kDouble).view({3, 3}), false),
                bias = register_parameter("bias", torch::linspace(0, 1, 3, torch::kDouble), false);
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(torch::linear(x, weight, bias)); }
};

torch::Tensor frozen_inputs(int rank) {
  return (torch::linspace(-1, 1, 6, torch::kDouble).view({2, 3}) + rank).requires_grad_();
}

// Autograd keeps what the nodes saved, which is not always the parameters that own the group.
TEST(ZooAutograd, GraphThroughFrozenParametersOutlivesItsModel) {
  run_thread_ranks(2, [](int r) {
    auto x = frozen_inputs(r), expected_x = frozen_inputs(r);
    FrozenNet().forward(expected_x).square().mean().backward();
    torch::Tensor y;
    {
      auto net = std::make_shared<FrozenNet>();
      const auto group = fully_shard(static_cast<nn::Module&>(*net));
      {
        ForwardScope scope(group);
        y = net->forward(x).square().mean();
      }
      EXPECT_TRUE(torch::equal(grad({y}, {x}, {}, /*retain_graph=*/true)[0], expected_x.grad()));
    }
    y.backward();
    EXPECT_TRUE(torch::equal(x.grad(), expected_x.grad()));
  });
}

}  // namespace
}  // namespace fsdp::test
