// What code that autograd calls sees of parameters before a node that reads them has run: hooks, functions of the loss.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

// The last layer may be frozen; the first one then trains, like an adapter.
struct WholeSizesNet : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 7)), out = register_module("out", nn::Linear(7, 5));
  Tensor forward(const Tensor& x) { return out->forward(torch::tanh(in->forward(x))); }
};

// Which of its layers train.
enum class Trains { kBoth, kFirst, kNone };

std::shared_ptr<WholeSizesNet> net_that(Trains trains) {
  auto net = std::make_shared<WholeSizesNet>();
  set_trainable(*net->in, trains != Trains::kNone);
  set_trainable(*net->out, trains == Trains::kBoth);
  return net;
}

void expect_same_of_net_that(Trains trains, Run<WholeSizesNet> run) {
  auto program = program_of<WholeSizesNet>(std::move(run));
  program.build = [=] { return net_that(trains); };
  expect_equals_unsharded(program);
}

TEST(ZooWholeSizes, AHookOnTheOutputThatAsksForSizesEqualsTheUnshardedRun) {
  expect_same_of_net_that(Trains::kBoth, [](WholeSizesNet& net, const Role& role) {
    return train(net, role, [](WholeSizesNet& m, const Batch& batch) {
      auto y = m.forward(samples(batch, {4}));
      y.register_hook([w = m.in->weight](const Tensor& gradient) { return gradient / w.size(0); });
      return distance_from_targets(y, batch);
    });
  });
}

// Nothing in its graph leads to a parameter that trains.
TEST(ZooWholeSizes, AHookOnTheOutputOfAFrozenModelSeesWholeSizes) {
  expect_same_of_net_that(Trains::kNone, [](WholeSizesNet& net, const Role& role) {
    auto x = samples(role.batch(0), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x); });
    y.register_hook([w = net.out->weight](const Tensor& gradient) { return gradient * w.size(0); });
    return Values{grad({y.pow(2).sum()}, {x})[0].pow(2).mean()};
  });
}

// Multiplies the gradient by the number of the weight's rows and has no other business with the weight.
struct ScaleByRows : torch::autograd::Function<ScaleByRows> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({weight});
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * static_cast<double>(context->get_saved_variables()[0].size(0)), Tensor()};
  }
};

TEST(ZooWholeSizes, AFunctionOfTheLossThatAsksAFrozenParameterForItsSizesEqualsTheUnshardedRun) {
  expect_same_of_net_that(Trains::kFirst, [](WholeSizesNet& net, const Role& role) {
    return train(net, role, [](WholeSizesNet& m, const Batch& batch) {
      return ScaleByRows::apply(loss_of(m, batch), m.out->weight);
    });
  });
}

// Reads its weight out of autograd's sight, and asks it for its sizes first in backward.
struct ScaledProduct : torch::autograd::Function<ScaledProduct> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({weight});
    return torch::matmul(x, weight.t()) * static_cast<double>(weight.size(0));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto weight = context->get_saved_variables()[0];
    return {torch::matmul(gradients[0] * static_cast<double>(weight.size(0)), weight), Tensor()};
  }
};

// Nothing else reads a parameter, and none trains; a later scope records nothing.
TEST(ZooWholeSizes, AFunctionOfAFrozenModelThatIsTheFirstNodeSeesWholeSizes) {
  for (bool evaluates : {false, true})
    expect_same_of_net_that(Trains::kNone, [=](WholeSizesNet& net, const Role& role) {
      auto x = samples(role.batch(0), {7}).requires_grad_();
      auto y = role.whole(net, [&] { return ScaledProduct::apply(x, net.out->weight); });
      if (evaluates) {
        const torch::NoGradGuard no_grad;
        role.whole(net, [&] { return net.out->forward(x); });
      }
      return Values{grad({y}, {x}, {torch::ones_like(y)})[0].pow(2).mean()};
    });
}

// x times a weight, whose backward is a kernel of its own on the weight's memory.
struct RawLinear : torch::autograd::Function<RawLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({weight});
    return torch::matmul(x, weight.t());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto weight = context->get_saved_variables()[0];
    const auto gradient = gradients[0].contiguous();
    auto result = torch::zeros({gradient.size(0), weight.size(1)}, torch::kDouble);
    const auto* w = weight.const_data_ptr<double>();
    const auto g = gradient.accessor<double, 2>();
    auto r = result.accessor<double, 2>();
    for (int64_t i = 0; i < gradient.size(0); ++i)
      for (int64_t j = 0; j < weight.size(0); ++j)
        for (int64_t k = 0; k < weight.size(1); ++k) r[i][k] += g[i][j] * w[j * weight.size(1) + k];
    return {result, Tensor()};
  }
};

// LibTorch does not say when a pointer is taken, so nothing can be gathered for it.
TEST(ZooWholeSizes, AKernelOnAFrozenWeightReadsAllOfItOrFailsWithTheParametersName) {
  for (const auto trains : {Trains::kFirst, Trains::kNone})
    for (int world : worlds_up_to(3))
      run_thread_ranks(world, [&](int rank) {
        const auto net = build_alike([&] { return net_that(trains); });
        net->to(torch::kDouble);
        const auto whole = net->out->weight.detach().clone();
        shard_children_then_root(*net, {});
        auto x = samples({0, rank * 2, 2}, {4}).requires_grad_();
        Tensor h, y;
        {
          ForwardScope scope(group_of(*net));
          h = torch::tanh(net->in->forward(x));
          y = RawLinear::apply(h, net->out->weight).sum();
        }
        try {
          const auto found = grad({y}, {h})[0];
          EXPECT_TRUE(torch::allclose(found, whole.sum(0).expand_as(found)));
        } catch (const c10::Error& error) {
          EXPECT_THAT(error.what_without_backtrace(), HasSubstr("weight' is sharded and its whole value"));
        }
        group_of(*net).reset_iter_state();
      });
}

}  // namespace
}  // namespace fsdp::test
