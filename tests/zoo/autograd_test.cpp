// What autograd can do besides loss.backward(): higher derivatives, gradients by name, custom functions, other threads.

#include <ATen/record_function.h>

#include <thread>

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

struct AutogradNet : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6)), middle = register_module("middle", nn::Linear(6, 5));
  nn::Linear out = register_module("out", nn::Linear(5, 3));
  Tensor forward(const Tensor& x) { return out->forward(torch::tanh(middle->forward(torch::tanh(in->forward(x))))); }
};

void expect_no_gradients(const nn::Module& net) {
  for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

void append(Values& values, const Values& more) { values.insert(values.end(), more.begin(), more.end()); }

// The penalty is taken outside the scope: its backward creates a graph of the parameters once more.
TEST(ZooAutograd, GradientPenaltyOutsideTheScopeEqualsTheUnshardedRun) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    return descend(net.parameters(), [&](int step) {
      auto x = samples(role.batch(step), {4}).requires_grad_();
      auto y = role.whole(net, [&] { return net.forward(x); });
      auto slope = grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      return backward_of(y.pow(2).mean() + (slope.norm(2, 1) - 1.0).pow(2).mean());
    });
  });
}

TEST(ZooAutograd, ThirdDerivativesEqualTheUnshardedRun) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    auto x = samples(role.batch(0), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x).sum(); });
    for (int i = 0; i < 2; ++i) y = grad({y}, {x}, {}, true, true)[0].pow(2).sum();
    (y / static_cast<double>(role.batch(0).count)).backward();
    return gradients_of(net, role);
  });
}

TEST(ZooAutograd, GradByInputsLeavesGradientsOfParametersAlone) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    auto x = samples(role.batch(0), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x).sum(1); });
    auto slope = grad({y.mean()}, {x})[0];
    expect_no_gradients(net);
    return Values{slope.pow(2).sum(0).mean() * static_cast<double>(role.batch(0).count)};
  });
}

TEST(ZooAutograd, GradByParametersReturnsThisRanksWholeGradients) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    auto loss = role.whole(net, [&] { return loss_of(net, role.batch(0)); });
    auto gradients = grad({loss}, {net.in->weight, net.out->bias, net.middle->weight});
    expect_no_gradients(net);
    return gradients;
  });
}

TEST(ZooAutograd, GradByParametersInsideTheScopeCanBeDifferentiated) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    // The mean over samples of something linear in each sample's gradient, so that ranks average.
    Values values{backward_of(role.whole(net, [&] {
      auto output = net.forward(samples(role.batch(0), {4}));
      auto gradients = grad({output.mean()}, {net.in->weight, net.middle->bias}, {}, true, true);
      return gradients[0].sum() + gradients[1].sum() + output.mean();
    }))};
    append(values, gradients_of(net, role));
    return values;
  });
}

TEST(ZooAutograd, BackwardWithInputsReducesOnlyThose) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    auto loss = role.whole(net, [&] { return loss_of(net, role.batch(0)); });
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true, false, {net.middle->weight, net.in->bias});
    auto values = gradients_of(net, role);
    EXPECT_FALSE(net.out->weight.grad().defined());
    loss.backward();
    append(values, gradients_of(net, role));
    return values;
  });
}

TEST(ZooAutograd, TwoBackwardsOverOneForwardAddTheirGradients) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    auto loss = role.whole(net, [&] { return loss_of(net, role.batch(0)); });
    loss.backward({}, /*retain_graph=*/true);
    auto values = gradients_of(net, role);
    loss.backward();
    append(values, gradients_of(net, role));
    return values;
  });
}

TEST(ZooAutograd, SeveralForwardsBeforeOneBackwardEqualTheUnshardedRun) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    return descend(net.parameters(), [&](int step) {
      auto loss = torch::zeros({}, torch::kDouble);
      for (int part = 0; part < 3; ++part)
        loss = loss + role.whole(net, [&] { return loss_of(net, role.batch(3 * step + part)); });
      return backward_of(loss);
    });
  });
}

TEST(ZooAutograd, BackwardInsideTheScopeEqualsTheUnshardedRun) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    return descend(net.parameters(), [&](int step) {
      return role.whole(net, [&] {
        auto value = backward_of(loss_of(net, role.batch(step)));
        return value + backward_of(loss_of(net, role.batch(step + 40)));  // parameters are still whole
      });
    });
  });
}

// Asks the saved parameter for its sizes before any operator has touched it in backward.
struct ScaledLinear : torch::autograd::Function<ScaledLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
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

// The function is the first node of backward: nothing else has shown it the whole parameter.
TEST(ZooAutograd, CustomFunctionAsTheFirstNodeOfBackwardSeesWholeSizes) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    auto output = role.whole(net, [&] { return ScaledLinear::apply(samples(role.batch(0), {4}), net.in->weight); });
    output.backward(torch::ones_like(output) / static_cast<double>(role.batch(0).count));
    return Values{role.gradient(net.in->weight)};
  });
}

struct AddedBias : torch::autograd::Function<AddedBias> {
  static Tensor forward(AutogradContext*, const Tensor& h, const Tensor& bias) { return h + bias; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], gradients[0].sum(0)};
  }
};

// Runs a layer again in backward, with a backward of its own inside the outer one.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor forward(AutogradContext* context, const Tensor& x, nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    return torch::tanh(layer->forward(x));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* layer = reinterpret_cast<nn::LinearImpl*>(context->saved_data["layer"].toInt());
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::AutoGradMode with_grad(true);
    torch::autograd::backward({torch::tanh(layer->forward(x))}, gradients);
    return {x.grad(), Tensor()};
  }
};

// Ends with a node that asks its parameter for the number of elements first, and is the first one that knows a
// parameter.
template <class Variance>
Tensor loss_with_variance(AutogradNet& net, const Batch& batch, const Variance& variance) {
  auto h = torch::matmul(samples(batch, {4}), net.in->weight.t()) * net.in->bias;
  auto y = torch::mm(torch::tanh(h), net.middle->weight.t()) + net.middle->bias.exp();
  auto loss = distance_from_targets(y, batch);
  return loss + variance(net.middle->weight);  // recorded last
}

Tensor loss_often(AutogradNet& net, const Batch& batch) {
  auto loss = loss_of(net, batch);
  for (int i = 1; i < 10; ++i) loss = loss + loss_of(net, batch);
  return loss / 20;
}

struct LossCase {
  const char* name;
  Tensor (*loss)(AutogradNet& net, const Batch& batch);
  Shard shard = shard_children_then_root;
  // Whether it is also so where a program turned LibTorch's observers off, of which the runtime is one.
  bool needs_no_observers = false;
};

class ZooAutogradLosses : public testing::TestWithParam<LossCase> {};

TEST_P(ZooAutogradLosses, EqualTheUnshardedRun) {
  for (bool observers : {true, false})
    if (observers || GetParam().needs_no_observers)
      expect_same_sharded<AutogradNet>(
          [=](AutogradNet& net, const Role& role) {
            const at::RecordFunctionGuard guard(observers);
            return train(net, role, GetParam().loss);
          },
          GetParam().shard);
}

const LossCase kLossCases[] = {
    {"OfAFunctionThatReadsTheSizesOfASavedParameterFirst",
     [](AutogradNet& net, const Batch& batch) {
       auto h = ScaledLinear::apply(samples(batch, {4}), net.in->weight);
       return distance_from_targets(ScaledLinear::apply(torch::tanh(h), net.middle->weight), batch);
     }},
    {"OfANodeThatAsksForSizesFirst",
     [](AutogradNet& net, const Batch& batch) {
       return loss_with_variance(net, batch, [](const Tensor& w) { return w.var(); });
     },
     shard_children_then_root,
     /*needs_no_observers=*/true},
    {"OfANodeOfSeveralResultsThatAsksForSizesFirst",
     [](AutogradNet& net, const Batch& batch) {
       return loss_with_variance(net, batch, [](const Tensor& w) { return std::get<0>(torch::var_mean(w)); });
     },
     shard_children_then_root,
     /*needs_no_observers=*/true},
    // The function's node has no hook, and its backward no operator on a parameter: without observers nothing comes
    // before the gradient itself.
    {"OfAFunctionThatReadsNothingInBackward",
     [](AutogradNet& net, const Batch& batch) {
       return distance_from_targets(AddedBias::apply(samples(batch, {6}), net.in->bias), batch);
     },
     shard_children_then_root,
     /*needs_no_observers=*/true},
    {"OfABackwardInsideBackward",
     [](AutogradNet& net, const Batch& batch) {
       auto h = torch::tanh(net.in->forward(samples(batch, {4})));
       return distance_from_targets(net.out->forward(Recomputed::apply(h, net.middle.get())), batch);
     }},
    // The graph leads to no parameter.
    {"OfAModelOfWhichAllIsComputedAgain",
     [](AutogradNet& net, const Batch& batch) {
       const auto x = samples(batch, {4}).requires_grad_();
       return distance_from_targets(Recomputed::apply(Recomputed::apply(x, net.in.get()), net.middle.get()), batch);
     }},
    {"OfAForwardOnAnotherThreadInsideTheScope",
     [](AutogradNet& net, const Batch& batch) {
       Tensor loss;
       std::thread([&] { loss = loss_of(net, batch); }).join();
       return loss;
     }},
    // Forces are the negative gradient of the energy by the positions, taken inside forward.
    {"OfForcesAndEnergies",
     [](AutogradNet& net, const Batch& batch) {
       auto positions = samples(batch, {4}).requires_grad_();
       auto energy = net.forward(positions);
       auto forces = -grad({energy.sum()}, {positions}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
       return distance_from_targets(energy, batch) + distance_from_targets(forces, batch);
     }},
    // One group, so that neither thread frees what the other one reads.
    {"OfTwoThreadsAtOnceInsideTheScope",
     [](AutogradNet& net, const Batch& batch) {
       Tensor other;
       std::thread thread([&] { other = loss_often(net, batch); });
       auto loss = loss_often(net, batch);
       thread.join();
       return loss + other;
     },
     shard_as_one_group}};

INSTANTIATE_TEST_SUITE_P(Zoo, ZooAutogradLosses, testing::ValuesIn(kLossCases),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ZooAutograd, BackwardOnAnotherThreadEqualsTheUnshardedRun) {
  expect_same_sharded<AutogradNet>([](AutogradNet& net, const Role& role) {
    return descend(net.parameters(), [&](int step) {
      auto loss = role.whole(net, [&] { return loss_of(net, role.batch(step)); });
      std::thread([&] { loss.backward(); }).join();
      return loss.detach();
    });
  });
}

struct FrozenNet : nn::Module {
  Tensor weight = register_parameter("weight", torch::linspace(-1, 2, 9, torch::kDouble).view({3, 3}), false),
         bias = register_parameter("bias", torch::linspace(0, 1, 3, torch::kDouble), false);
  Tensor forward(const Tensor& x) { return torch::tanh(torch::linear(x, weight, bias)); }
};

// Autograd keeps what the nodes saved, which is not always the parameters that own the group.
TEST(ZooAutograd, GraphThroughFrozenParametersOutlivesItsModel) {
  run_thread_ranks(2, [](int r) {
    const auto x = (torch::linspace(-1, 1, 6, torch::kDouble).view({2, 3}) + r).requires_grad_();
    FrozenNet().forward(x).square().mean().backward();
    const auto expected = std::exchange(x.mutable_grad(), Tensor());
    Tensor y;
    {
      auto net = std::make_shared<FrozenNet>();
      const auto group = fully_shard(static_cast<nn::Module&>(*net));
      {
        ForwardScope scope(group);
        y = net->forward(x).square().mean();
      }
      EXPECT_TRUE(torch::equal(grad({y}, {x}, {}, /*retain_graph=*/true)[0], expected));
    }
    y.backward();
    EXPECT_TRUE(torch::equal(x.grad(), expected));
  });
}

}  // namespace
}  // namespace fsdp::test
