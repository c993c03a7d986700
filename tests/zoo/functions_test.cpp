// Tests of user-defined functions and hooks that see whole parameters before any node that reads them has run.

#include <thread>

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

enum class Trains { kAll, kFirst, kNone };

std::shared_ptr<ThreeLayers> net_that(Trains trains) {
  auto net = std::make_shared<ThreeLayers>();
  set_trainable(*net, trains == Trains::kAll);
  set_trainable(*net->in, trains != Trains::kNone);
  return net;
}

void expect_same_of_net_that(Trains trains, Run<ThreeLayers> run) {
  auto program = program_of<ThreeLayers>(std::move(run));
  program.build = [=] { return net_that(trains); };
  expect_equals_unsharded(program);
}

// Its backward reads the saved parameter's sizes before any operator has used the parameter.
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

// The function is the first node of backward, so nothing has unsharded the parameter before.
TEST(ZooAutograd, CustomFunctionAsTheFirstNodeOfBackwardSeesWholeSizes) {
  expect_same_sharded<ThreeLayers>([](ThreeLayers& net, const Role& role) {
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

// Recomputes the layer in backward, and runs another backward inside the outer one.
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

// The first node of backward reads its parameter's number of elements before any other node has used a parameter.
template <class Variance>
Tensor loss_with_variance(ThreeLayers& net, const Batch& batch, const Variance& variance) {
  auto h = torch::matmul(samples(batch, {4}), net.in->weight.t()) * net.in->bias;
  auto y = torch::mm(torch::tanh(h), net.middle->weight.t()) + net.middle->bias.exp();
  auto loss = distance_from_targets(y, batch);
  return loss + variance(net.middle->weight);  // recorded last, so its node runs first
}

Tensor loss_often(ThreeLayers& net, const Batch& batch) {
  auto loss = loss_of(net, batch);
  for (int i = 1; i < 5; ++i) loss = loss + loss_of(net, batch);
  return loss / 10;
}

struct LossCase {
  const char* name;
  Tensor (*loss)(ThreeLayers& net, const Batch& batch);
  Shard shard = shard_children_then_root;
};

class ZooAutogradLosses : public testing::TestWithParam<LossCase> {};

TEST_P(ZooAutogradLosses, EqualTheUnshardedRun) {
  expect_same_sharded<ThreeLayers>(
      [](ThreeLayers& net, const Role& role) { return train(net, role, GetParam().loss, /*steps=*/2); },
      GetParam().shard);
}

const LossCase kLossCases[] = {
    {"OfAFunctionThatReadsTheSizesOfASavedParameterFirst",
     [](ThreeLayers& net, const Batch& batch) {
       auto h = ScaledLinear::apply(samples(batch, {4}), net.in->weight);
       return distance_from_targets(ScaledLinear::apply(torch::tanh(h), net.middle->weight), batch);
     }},
    {"OfANodeThatAsksForSizesFirst",
     [](ThreeLayers& net, const Batch& batch) {
       return loss_with_variance(net, batch, [](const Tensor& w) { return w.var(); });
     }},
    {"OfANodeOfSeveralResultsThatAsksForSizesFirst",
     [](ThreeLayers& net, const Batch& batch) {
       return loss_with_variance(net, batch, [](const Tensor& w) { return std::get<0>(torch::var_mean(w)); });
     }},
    // The function's node has no hook, and its backward runs no operator on a parameter.
    {"OfAFunctionThatReadsNothingInBackward",
     [](ThreeLayers& net, const Batch& batch) {
       return distance_from_targets(AddedBias::apply(samples(batch, {6}), net.in->bias), batch);
     }},
    {"OfABackwardInsideBackward",
     [](ThreeLayers& net, const Batch& batch) {
       auto h = torch::tanh(net.in->forward(samples(batch, {4})));
       return distance_from_targets(net.out->forward(Recomputed::apply(h, net.middle.get())), batch);
     }},
    // The graph contains no parameter.
    {"OfAModelOfWhichAllIsComputedAgain",
     [](ThreeLayers& net, const Batch& batch) {
       const auto x = samples(batch, {4}).requires_grad_();
       return distance_from_targets(Recomputed::apply(Recomputed::apply(x, net.in.get()), net.middle.get()), batch);
     }},
    {"OfAForwardOnAnotherThreadInsideTheScope",
     [](ThreeLayers& net, const Batch& batch) {
       Tensor loss;
       std::thread([&] { loss = loss_of(net, batch); }).join();
       return loss;
     }},
    // Forces are the negative gradient of the energy with respect to the positions, taken inside forward.
    {"OfForcesAndEnergies",
     [](ThreeLayers& net, const Batch& batch) {
       auto positions = samples(batch, {4}).requires_grad_();
       auto energy = net.forward(positions);
       auto forces = -grad({energy.sum()}, {positions}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
       return distance_from_targets(energy, batch) + distance_from_targets(forces, batch);
     }},
    // There is only one param group, so neither thread frees what the other one reads.
    {"OfTwoThreadsAtOnceInsideTheScope",
     [](ThreeLayers& net, const Batch& batch) {
       Tensor other;
       std::thread thread([&] { other = loss_often(net, batch); });
       auto loss = loss_often(net, batch);
       thread.join();
       return loss + other;
     },
     shard_as_one_group}};

INSTANTIATE_TEST_SUITE_P(Zoo, ZooAutogradLosses, testing::ValuesIn(kLossCases),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ZooWholeSizes, AHookOnTheOutputThatAsksForSizesEqualsTheUnshardedRun) {
  expect_same_of_net_that(
      Trains::kAll, fitting<ThreeLayers>([](ThreeLayers& m, const Batch& batch) {
        auto y = m.forward(samples(batch, {4}));
        y.register_hook([w = m.in->weight](const Tensor& gradient) { return gradient / w.size(0); });
        return distance_from_targets(y, batch);
      }));
}

// The output's graph contains no parameter that trains.
TEST(ZooWholeSizes, AHookOnTheOutputOfAFrozenModelSeesWholeSizes) {
  expect_same_of_net_that(Trains::kNone, [](ThreeLayers& net, const Role& role) {
    auto x = samples(role.batch(0), {4}).requires_grad_();
    auto y = role.whole(net, [&] { return net.forward(x); });
    y.register_hook([w = net.out->weight](const Tensor& gradient) { return gradient * w.size(0); });
    return Values{grad({y.pow(2).sum()}, {x})[0].pow(2).mean()};
  });
}

// Multiplies the gradient by the number of the weight's rows, and does nothing else with the weight.
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
  expect_same_of_net_that(Trains::kFirst, fitting<ThreeLayers>([](ThreeLayers& m, const Batch& batch) {
                            return ScaleByRows::apply(loss_of(m, batch), m.out->weight);
                          }));
}

// Computes the same, but its backward reads sizes after it has read the weight.
struct ReadThenScaledLinear : torch::autograd::Function<ReadThenScaledLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    return ScaledLinear::forward(context, x, weight);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto weight = context->get_saved_variables()[1];
    return {torch::matmul(gradients[0], weight) * static_cast<double>(weight.size(0)), Tensor()};
  }
};

// No other node reads a parameter, and no parameter trains. A later scope records no graph.
TEST(ZooWholeSizes, AFunctionOfAFrozenModelThatIsTheFirstNodeSeesWholeSizesFromItsFirstOperatorOn) {
  for (bool evaluates : {false, true})
    expect_same_of_net_that(Trains::kNone, [=](ThreeLayers& net, const Role& role) {
      auto x = samples(role.batch(0), {5}).requires_grad_();
      auto y = role.whole(net, [&] { return ReadThenScaledLinear::apply(x, net.out->weight); });
      if (evaluates) {
        const torch::NoGradGuard no_grad;
        role.whole(net, [&] { return net.out->forward(x); });
      }
      return Values{grad({y}, {x}, {torch::ones_like(y)})[0].pow(2).mean()};
    });
}

// Multiplies x by a weight. Its backward is a hand-written kernel on the weight's memory.
struct RawLinear : torch::autograd::Function<RawLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({weight});
    return torch::matmul(x, weight.t());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto weight = context->get_saved_variables()[0];
    auto* memory = const_cast<double*>(weight.const_data_ptr<double>());
    return {torch::matmul(gradients[0], torch::from_blob(memory, weight.sizes(), torch::kDouble)), Tensor()};
  }
};

// LibTorch does not report that a program takes a pointer, so the runtime cannot gather for it.
TEST(ZooWholeSizes, AKernelOnAFrozenWeightReadsAllOfItOrFailsWithTheParametersName) {
  for (const auto trains : {Trains::kFirst, Trains::kNone})
    for (int world : worlds_up_to(3))
      run_thread_ranks(world, [&](int rank) {
        const auto net = build_alike([&] { return net_that(trains); });
        net->to(torch::kDouble);
        const auto whole = net->out->weight.detach().clone();
        shard_children_then_root(*net, {});
        auto x = samples({0, rank * 2, 2}, {4}).requires_grad_();
        const auto [h, y] = in_scope(group_of(*net), [&] {
          auto inner = torch::tanh(net->middle->forward(torch::tanh(net->in->forward(x))));
          return std::pair(inner, RawLinear::apply(inner, net->out->weight).sum());
        });
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
