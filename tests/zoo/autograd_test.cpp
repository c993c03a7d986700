// Tests of what autograd can do besides loss.backward(): higher derivatives, gradients by name, other threads.

#include <thread>

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

using torch::autograd::grad;

void expect_no_gradients(const nn::Module& net) {
  for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

// The program takes the derivatives outside the scope. Each of them runs backward through the parameters again.
TEST(ZooAutograd, HigherDerivativesOutsideTheScopeEqualTheUnshardedRun) {
  expect_same_sharded<ThreeLayers>(stepping<ThreeLayers>([](ThreeLayers& net, const Role& role, int step) {
    auto x = samples(role.batch(step), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x).sum(); });
    for (int i = 0; i < 2; ++i) y = grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0].pow(2).sum();
    return backward_of(y / static_cast<double>(role.batch(step).count));
  }));
}

TEST(ZooAutograd, GradGivesThisRanksWholeGradientsAndLeavesThoseOfParametersAlone) {
  expect_same_sharded<ThreeLayers>([](ThreeLayers& net, const Role& role) {
    auto x = samples(role.batch(0), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x).sum(1); });
    auto slope = grad({y.mean()}, {x})[0];
    Values values{slope.pow(2).sum(0).mean() * static_cast<double>(role.batch(0).count)};
    append(values, grad({scoped_loss(net, role)}, {net.in->weight, net.out->bias, net.middle->weight}));
    expect_no_gradients(net);
    return values;
  });
}

TEST(ZooAutograd, GradByParametersInsideTheScopeCanBeDifferentiated) {
  expect_same_sharded<ThreeLayers>([](ThreeLayers& net, const Role& role) {
    // The values are means over samples, and linear in each sample's gradient. Their mean over ranks is therefore the
    // value of the unsharded run.
    Values values{backward_of(role.whole(net, [&] {
      auto output = net.forward(samples(role.batch(0), {4}));
      auto gradients = grad({output.mean()}, {net.in->weight, net.middle->bias}, {}, true, true);
      return gradients[0].sum() + gradients[1].sum() + output.mean();
    }))};
    append(values, gradients_of(net, role));
    return values;
  });
}

TEST(ZooAutograd, BackwardsOverOneForwardAddTheirGradientsAndReduceTheirInputsOnly) {
  expect_same_sharded<ThreeLayers>([](ThreeLayers& net, const Role& role) {
    auto loss = scoped_loss(net, role);
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true, false, {net.middle->weight, net.in->bias});
    auto values = gradients_of(net, role);
    EXPECT_FALSE(net.out->weight.grad().defined());
    for (bool retains : {true, false}) {
      loss.backward({}, retains);
      append(values, gradients_of(net, role));
    }
    return values;
  });
}

TEST(ZooAutograd, SeveralForwardsBeforeOneBackwardEqualTheUnshardedRun) {
  expect_same_sharded<ThreeLayers>(stepping<ThreeLayers>([](ThreeLayers& net, const Role& role, int step) {
    return backward_of(scoped_loss(net, role, 3 * step) + scoped_loss(net, role, 3 * step + 1));
  }));
}

TEST(ZooAutograd, BackwardInsideTheScopeEqualsTheUnshardedRun) {
  expect_same_sharded<ThreeLayers>(stepping<ThreeLayers>([](ThreeLayers& net, const Role& role, int step) {
    return role.whole(net, [&] {
      auto value = backward_of(loss_of(net, role.batch(step)));
      return value + backward_of(loss_of(net, role.batch(step + 40)));  // the parameters are still whole
    });
  }));
}

TEST(ZooAutograd, BackwardOnAnotherThreadEqualsTheUnshardedRun) {
  expect_same_sharded<ThreeLayers>(stepping<ThreeLayers>([](ThreeLayers& net, const Role& role, int step) {
    auto loss = scoped_loss(net, role, step);
    std::thread([&] { loss.backward(); }).join();
    return loss.detach();
  }));
}

struct FrozenNet : nn::Module {
  Tensor weight = register_parameter("weight", torch::linspace(-1, 2, 9, torch::kDouble).view({3, 3}), false),
         bias = register_parameter("bias", torch::linspace(0, 1, 3, torch::kDouble), false);
  Tensor forward(const Tensor& x) { return torch::tanh(torch::linear(x, weight, bias)); }
};

// The graph keeps the tensors that its nodes saved. These may not include the parameters that own the param group.
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
