// What code that autograd calls sees of parameters before a node that reads them has run: hooks, functions of the loss.

#include <gmock/gmock.h>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::HasSubstr;
using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

// The last layer may be frozen; the first one then trains, like an adapter.
struct WholeSizesNet : nn::Module {
  nn::Linear in{4, 7}, out{7, 5};
  explicit WholeSizesNet(bool freezes_out = false, bool freezes_in = false) {
    register_module("in", in);
    register_module("out", out);
    if (freezes_in)
      for (auto& parameter : in->parameters()) parameter.set_requires_grad(false);
    if (freezes_out)
      for (auto& parameter : out->parameters()) parameter.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::tanh(in->forward(x))); }
};

Program<WholeSizesNet> whole_sizes_program(bool freezes_out, std::function<Values(WholeSizesNet&, const Role&)> run) {
  Program<WholeSizesNet> program;
  program.build = [=] { return std::make_shared<WholeSizesNet>(freezes_out); };
  program.shard = shard_children_then_root;
  program.run = std::move(run);
  return program;
}

TEST(ZooWholeSizes, AHookOnTheOutputThatAsksForSizesEqualsTheUnshardedRun) {
  expect_equals_unsharded(whole_sizes_program(false, [](WholeSizesNet& net, const Role& role) {
    return train(net, role, [](WholeSizesNet& m, const Batch& batch) {
      auto y = m.forward(samples(batch, {4}));
      y.register_hook([w = m.in->weight](const torch::Tensor& gradient) { return gradient / w.size(0); });
      return distance_from_targets(y, batch);
    });
  }));
}

// Nothing in its graph leads to a parameter that trains.
TEST(ZooWholeSizes, AHookOnTheOutputOfAFrozenModelSeesWholeSizes) {
  auto program = whole_sizes_program(true, [](WholeSizesNet& net, const Role& role) {
    auto x = samples(role.batch(0), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x); });
    y.register_hook([w = net.out->weight](const torch::Tensor& gradient) { return gradient * w.size(0); });
    return Values{grad({y.pow(2).sum()}, {x})[0].pow(2).mean()};
  });
  program.build = [] { return std::make_shared<WholeSizesNet>(true, true); };
  expect_equals_unsharded(program);
}

// Multiplies the gradient by the number of the weight's rows and has no other business with the weight.
struct ScaleByRows : torch::autograd::Function<ScaleByRows> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight) {
    context->save_for_backward({weight});
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * static_cast<double>(context->get_saved_variables()[0].size(0)), torch::Tensor()};
  }
};

TEST(ZooWholeSizes, AFunctionOfTheLossThatAsksAFrozenParameterForItsSizesEqualsTheUnshardedRun) {
  expect_equals_unsharded(whole_sizes_program(true, [](WholeSizesNet& net, const Role& role) {
    return train(net, role, [](WholeSizesNet& m, const Batch& batch) {
      auto loss = distance_from_targets(m.forward(samples(batch, {4})), batch);
      return ScaleByRows::apply(loss, m.out->weight);
    });
  }));
}

// Reads its weight out of autograd's sight, and asks it for its sizes first in backward.
struct ScaledProduct : torch::autograd::Function<ScaledProduct> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight) {
    context->save_for_backward({weight});
    return torch::matmul(x, weight.t()) * static_cast<double>(weight.size(0));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto weight = context->get_saved_variables()[0];
    return {torch::matmul(gradients[0] * static_cast<double>(weight.size(0)), weight), torch::Tensor()};
  }
};

// Nothing else reads a parameter, and none trains; a later scope records nothing.
TEST(ZooWholeSizes, AFunctionOfAFrozenModelThatIsTheFirstNodeSeesWholeSizes) {
  for (bool evaluates : {false, true}) {
    auto program = whole_sizes_program(true, [=](WholeSizesNet& net, const Role& role) {
      auto x = samples(role.batch(0), {7}).requires_grad_();
      auto y = role.whole(net, [&] { return ScaledProduct::apply(x, net.out->weight); });
      if (evaluates) {
        const torch::NoGradGuard no_grad;
        role.whole(net, [&] { return net.out->forward(x); });
      }
      return Values{grad({y}, {x}, {torch::ones_like(y)})[0].pow(2).mean()};
    });
    program.build = [] { return std::make_shared<WholeSizesNet>(true, true); };
    expect_equals_unsharded(program);
  }
}

// x times a weight, whose backward is a kernel of its own on the weight's memory.
struct RawLinear : torch::autograd::Function<RawLinear> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight) {
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
    return {result, torch::Tensor()};
  }
};

// LibTorch does not say when a pointer is taken, so nothing can be gathered for it.
TEST(ZooWholeSizes, AKernelOnAFrozenWeightReadsAllOfItOrFailsWithTheParametersName) {
  for (bool trains : {true, false})
    for (int world : worlds_up_to(3)) {
      auto models = std::vector<std::shared_ptr<WholeSizesNet>>();
      for (int r = 0; r < world; ++r) {
        torch::manual_seed(7);
        models.push_back(std::make_shared<WholeSizesNet>(true, !trains));
        models.back()->to(torch::kDouble);
      }
      run_thread_ranks(world, [&](int rank) {
        auto& net = *models[static_cast<size_t>(rank)];
        const auto whole = net.out->weight.detach().clone();
        shard_children_then_root(net, {});
        auto x = samples({0, rank * 2, 2}, {4}).requires_grad_();
        auto h = torch::Tensor(), y = torch::Tensor();
        {
          ForwardScope scope(group_of(net));
          h = torch::tanh(net.in->forward(x));
          y = RawLinear::apply(h, net.out->weight).sum();
        }
        try {
          const auto found = grad({y}, {h})[0];
          EXPECT_TRUE(torch::allclose(found, whole.sum(0).expand_as(found)));
        } catch (const c10::Error& error) {
          EXPECT_THAT(error.what_without_backtrace(), HasSubstr("weight' is sharded and its whole value"));
        }
        group_of(net).reset_iter_state();
      });
    }
}

}  // namespace
}  // namespace fsdp::test
