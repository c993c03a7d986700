// fsdp::optim's optimizers against torch::optim's, which step the unsharded oracle.

#include <fsdp/optim.h>

#include "optim/adadelta_reference.h"
#include "optim/net.h"

namespace fsdp::test {
namespace {

using optim::AdadeltaOptions;
using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

template <class Options>
struct OptimizersOf;
template <>
struct OptimizersOf<AdamWOptions> {
  using Torchs = torch::optim::AdamW;
  using Ours = optim::AdamW;
};
template <>
struct OptimizersOf<AdamOptions> {
  using Torchs = torch::optim::Adam;
  using Ours = optim::Adam;
};
template <>
struct OptimizersOf<RMSpropOptions> {
  using Torchs = torch::optim::RMSprop;
  using Ours = optim::RMSprop;
};
template <>
struct OptimizersOf<AdagradOptions> {
  using Torchs = torch::optim::Adagrad;
  using Ours = optim::Adagrad;
};
template <>
struct OptimizersOf<SGDOptions> {
  using Torchs = torch::optim::SGD;
  using Ours = optim::SGD;
};

template <>
struct OptimizersOf<AdadeltaOptions> {
  using Torchs = ReferenceAdadelta;
  using Ours = optim::Adadelta;
};

template <class Options, class Parameters>
std::unique_ptr<Optimizer> make_optimizer(bool ours, const Parameters& parameters, const Options& options) {
  if (ours) return std::make_unique<typename OptimizersOf<Options>::Ours>(parameters, options);
  return std::make_unique<typename OptimizersOf<Options>::Torchs>(parameters, options);
}

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(OptimNet&, bool ours)>;

// Six steps, each of two micro-batches, with a learning rate that falls.
Program<OptimNet> program_with(const MakeOptimizer& make) {
  Program<OptimNet> program;
  program.build = [] { return std::make_shared<OptimNet>(); };
  program.shard = [](OptimNet& net, const FullyShardOptions& options) { shard_in_two(net, options); };
  program.run = [make](OptimNet& net, const Role& role) {
    auto optimizer = make(net, role.is_sharded());
    Values losses;
    for (int step = 0; step < 6; ++step) {
      for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * 0.9);
      optimizer->zero_grad(/*set_to_none=*/step % 3 != 2);
      for (int micro = 0; micro < 2; ++micro) backward(net, role, 2 * step + (step % 2 == 0 ? 0 : micro));
      optimizer->step();
      torch::NoGradGuard no_grad;
      losses.push_back(role.whole(net, [&] { return net.loss(role.batch(step)); }));
    }
    return losses;
  };
  return program;
}

// In fp64, in fp32, and as one group.
void expect_equals_torchs(const MakeOptimizer& make) {
  auto program = program_with(make);
  expect_equals_unsharded(program, worlds_up_to(4));
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program, worlds_up_to(3));
  program.dtype = torch::kFloat;
  program.tolerance = 5e-6;
  expect_equals_unsharded(program, worlds_up_to(4));
}

template <class Options>
void expect_options_give_torchs(const Options& options) {
  expect_equals_torchs([=](OptimNet& net, bool ours) { return make_optimizer(ours, net.parameters(), options); });
}

TEST(OptimEquality, AdamWEqualsTorchsOnTheUnshardedModel) {
  expect_options_give_torchs(AdamWOptions(0.01).weight_decay(0.1));
}

TEST(OptimEquality, AdamWWithAmsgradAndWithoutDecayEqualsTorchs) {
  expect_options_give_torchs(AdamWOptions(0.01).amsgrad(true).betas({0.8, 0.95}).eps(1e-6).weight_decay(0));
}

TEST(OptimEquality, AdamWWithOptionsPerGroupOfParametersEqualsTorchs) {
  expect_equals_torchs([](OptimNet& net, bool ours) {
    auto groups = three_groups(net, AdamWOptions(0.02).weight_decay(0.1), AdamWOptions(0.01).weight_decay(0.001),
                               AdamWOptions(0.003).amsgrad(true));
    return make_optimizer(ours, groups, AdamWOptions(0.01));
  });
}

TEST(OptimEquality, AdamEqualsTorchs) {
  expect_options_give_torchs(AdamOptions(0.01));
  expect_options_give_torchs(AdamOptions(0.01).amsgrad(true).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1));
}

TEST(OptimEquality, RmspropEqualsTorchs) {
  expect_options_give_torchs(RMSpropOptions(0.003));
  expect_options_give_torchs(RMSpropOptions(0.003).alpha(0.9).eps(1e-5).weight_decay(0.1));
}

TEST(OptimEquality, RmspropWithMomentumCenteredAndBothEqualsTorchs) {
  // What fp32 rounds in a gradient that is nearly 0 is magnified by 1 / eps, and momentum adds it up; of the difference
  // of two means that are nearly equal it is more.
  expect_options_give_torchs(RMSpropOptions(0.003).eps(1e-2).momentum(0.9));
  expect_options_give_torchs(RMSpropOptions(0.003).eps(0.1).centered(true));
  expect_options_give_torchs(RMSpropOptions(0.003).eps(0.1).centered(true).momentum(0.5).weight_decay(0.01));
}

TEST(OptimEquality, AdagradEqualsTorchs) {
  expect_options_give_torchs(AdagradOptions(0.05));
  expect_options_give_torchs(
      AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.2).eps(1e-6));
}

TEST(OptimEquality, OptionsPerGroupOfParametersEqualTorchsOfEachKind) {
  expect_equals_torchs([](OptimNet& net, bool ours) {
    auto groups = three_groups(net, AdamOptions(0.02).weight_decay(0.1), AdamOptions(0.01),
                               AdamOptions(0.003).amsgrad(true));
    return make_optimizer(ours, groups, AdamOptions(0.01));
  });
  expect_equals_torchs([](OptimNet& net, bool ours) {
    auto groups = three_groups(net, RMSpropOptions(0.003).eps(1e-4).momentum(0.9), RMSpropOptions(0.003).alpha(0.9),
                               RMSpropOptions(0.001).eps(1e-4).centered(true));
    return make_optimizer(ours, groups, RMSpropOptions(0.01));
  });
  expect_equals_torchs([](OptimNet& net, bool ours) {
    auto groups = three_groups(net, AdagradOptions(0.05).weight_decay(0.1), AdagradOptions(0.02).lr_decay(0.5),
                               AdagradOptions(0.01).eps(1e-3));
    return make_optimizer(ours, groups, AdagradOptions(0.01).initial_accumulator_value(0.1));
  });
}

TEST(OptimEquality, SgdEqualsTorchs) {
  expect_options_give_torchs(SGDOptions(0.1));
  expect_options_give_torchs(SGDOptions(0.1).weight_decay(0.05));
}

TEST(OptimEquality, SgdWithMomentumDampeningAndDecayEqualsTorchs) {
  expect_options_give_torchs(SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01));
}

TEST(OptimEquality, SgdWithNesterovsMomentumEqualsTorchs) {
  expect_options_give_torchs(SGDOptions(0.1).momentum(0.9).nesterov(true));
}

TEST(OptimEquality, SgdWithOptionsPerGroupOfParametersEqualsTorchs) {
  expect_equals_torchs([](OptimNet& net, bool ours) {
    auto groups =
        three_groups(net, SGDOptions(0.1).momentum(0.9), SGDOptions(0.05), SGDOptions(0.02).weight_decay(0.1));
    return make_optimizer(ours, groups, SGDOptions(0.1));
  });
}

TEST(OptimEquality, AdadeltaEqualsPythons) {
  expect_options_give_torchs(AdadeltaOptions());
  expect_options_give_torchs(AdadeltaOptions(0.5).rho(0.8).eps(1e-4).weight_decay(0.1));
}

TEST(OptimEquality, AdadeltaWithOptionsPerGroupOfParametersEqualsPythons) {
  expect_equals_torchs([](OptimNet& net, bool ours) {
    auto groups = three_groups(net, AdadeltaOptions(1.0).weight_decay(0.1), AdadeltaOptions(0.5).rho(0.7),
                               AdadeltaOptions(0.1).eps(1e-3));
    return make_optimizer(ours, groups, AdadeltaOptions());
  });
}

// What torch.optim.Adadelta([p], lr=0.7, rho=0.8, eps=1e-5, weight_decay=0.1) of PyTorch 2.13 made of the same
// gradients. Its kernels for fp32 contain fused multiply-adds, which round once less, so state may differ by two units
// of the last place.
struct PythonsNumbers {
  torch::ScalarType dtype;
  double tolerance, state_tolerance;
  std::vector<double> parameter, square_avg, acc_delta;
};
const std::vector<PythonsNumbers> kPythonsAdadelta{
    {torch::kDouble,
     1e-14,
     1e-14,
     {0.9812120592432496, -0.4810152753420806, 0.2351977060643366, 1.9810371410617384},
     {0.7507867285248726, 2.6723153850386643, 0.00029168784812060174, 24.383977988452493},
     {4.2574590006881224e-05, 4.3643832495819136e-05, 2.4485778632555245e-05, 4.352395678909913e-05}},
    {torch::kFloat,
     1e-7,
     2.4e-7,
     {0.9812120199203491, -0.48101526498794556, 0.23519770801067352, 1.9810371398925781},
     {0.7507867217063904, 2.6723153591156006, 0.0002916878729593009, 24.38397979736328},
     {4.2574592953315005e-05, 4.3643838580464944e-05, 2.4485781978000887e-05, 4.352395990281366e-05}}};

TEST(OptimEquality, AdadeltaGivesTheNumbersThatPythonGave) {
  for (const auto& python : kPythonsAdadelta) {
    const auto parameter = torch::tensor({1.0, -0.5, 0.25, 2.0}, python.dtype).requires_grad_();
    optim::Adadelta optimizer({parameter}, AdadeltaOptions(0.7).rho(0.8).eps(1e-5).weight_decay(0.1));
    for (int step = 1; step <= 3; ++step) {
      parameter.mutable_grad() = torch::tensor({0.5, -1.0, 0.0, 3.0}, python.dtype) * step;
      optimizer.step();
    }
    const auto& state =
        static_cast<const optim::AdadeltaParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
    const auto difference = [](const std::vector<double>& expected, const torch::Tensor& found) {
      return relative_difference(torch::tensor(expected, torch::kDouble), found.to(torch::kDouble));
    };
    EXPECT_LE(difference(python.parameter, parameter.detach()), python.tolerance);
    EXPECT_LE(difference(python.square_avg, state.square_avg()), python.state_tolerance);
    EXPECT_LE(difference(python.acc_delta, state.acc_delta()), python.state_tolerance);
    EXPECT_EQ(state.step(), 3);
  }
}

TEST(OptimEquality, AParameterGroupAddedLaterEqualsTorchs) {
  auto program = program_with({});
  program.run = [](OptimNet& net, const Role& role) {
    std::vector<torch::Tensor> some{net.in->weight, net.scale}, others{net.in->bias, net.out->weight};
    auto optimizer = make_optimizer(role.is_sharded(), some, AdamWOptions(0.02));
    for (int step = 0; step < 4; ++step) {
      if (step == 2) optimizer->add_param_group({others, std::make_unique<AdamWOptions>(0.005)});
      net.zero_grad();
      backward(net, role, step);
      optimizer->step();
    }
    return Values{};
  };
  expect_equals_unsharded(program, worlds_up_to(3));
}

TEST(OptimEquality, OptimizerMadeBeforeShardingIsAsGoodAsOneMadeAfter) {
  auto program = program_with({});
  program.shard = [](OptimNet&, const FullyShardOptions&) {};
  program.run = [](OptimNet& net, const Role& role) {
    auto optimizer = make_optimizer(role.is_sharded(), net.parameters(), AdamWOptions(0.02));
    if (role.is_sharded()) shard_in_two(net);
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      backward(net, role, step);
      optimizer->step();
    }
    return Values{};
  };
  expect_equals_unsharded(program, worlds_up_to(2));
}

// Two sharded models, one of which lists a tied weight twice, and a plain tensor, in one optimizer.
struct TwoNets : torch::nn::Module {
  std::shared_ptr<OptimNet> net = std::make_shared<OptimNet>();
  torch::nn::Linear first{5, 5};
  torch::Tensor plain = torch::full({4, 3}, 0.25);  // not registered: every rank steps all of it
  TwoNets() {
    register_module("net", net);
    register_module("first", first);
    register_parameter("tied", first->weight);
  }
};

TEST(OptimEquality, SeveralModelsTiedWeightsAndPlainTensorsInOneOptimizerEqualTorchs) {
  for (bool with_momentum : {false, true}) {
    Program<TwoNets> program;
    program.build = [] { return std::make_shared<TwoNets>(); };
    program.shard = [](TwoNets& nets, const FullyShardOptions& options) {
      shard_in_two(*nets.net, options);
      fully_shard(static_cast<torch::nn::Module&>(nets), options);
    };
    program.run = [=](TwoNets& nets, const Role& role) {
      auto plain = nets.plain.to(torch::kDouble).requires_grad_();
      auto parameters = nets.parameters();
      parameters.push_back(plain);
      auto optimizer =
          make_optimizer(role.is_sharded(), parameters, SGDOptions(0.05).momentum(with_momentum ? 0.9 : 0.0));
      for (int step = 0; step < 4; ++step) {
        optimizer->zero_grad();
        auto batch = role.batch(step);
        role.whole(nets,
                   [&] {
                     auto tied = torch::linear(nets.first->forward(samples(batch, {5})), nets.first->weight);
                     return nets.net->loss(batch) + distance_from_targets(tied, batch);
                   })
            .backward();
        plain.pow(2).sum().backward();
        optimizer->step();
      }
      return Values{plain.detach()};
    };
    expect_equals_unsharded(program, worlds_up_to(3));
  }
}

// The same rows, stepped by torch's optimizer: the arithmetic alone.
TEST(OptimEquality, RowsEqualThoseThatTorchsOptimizerSteps) {
  for (auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const double tolerance = dtype == torch::kDouble ? 1e-12 : dtype == torch::kFloat ? 5e-6 : 0.02;
    for (int world : worlds_up_to(3)) {
      std::vector<std::shared_ptr<OptimNet>> nets;
      for (int i = 0; i < 12 * world; ++i) {
        torch::manual_seed(7);
        nets.push_back(std::make_shared<OptimNet>());
        nets.back()->to(dtype);
      }
      run_thread_ranks(world, [&](int rank) {
        auto train = [&](auto& net, bool ours, const auto& options) {
          shard_in_two(net);
          auto optimizer = make_optimizer(ours, net.parameters(), options);
          for (int step = 0; step < 4; ++step) {
            for (const auto& parameter : net.parameters()) {
              auto sizes = parameter.sizes().vec();
              parameter.mutable_grad() = samples({step, 3, 1}, sizes, dtype).squeeze(0);
            }
            optimizer->step();
          }
        };
        auto compare = [&](int first, const auto& options) {
          auto net = [&](int i) -> OptimNet& { return *nets[static_cast<size_t>(12 * rank + first + i)]; };
          for (int i : {0, 1}) train(net(i), i == 1, options);
          auto expected = net(0).parameters(), found = net(1).parameters();
          for (size_t i = 0; i < found.size(); ++i)
            expect_close(expected[i].detach().clone(), found[i].detach().clone(), tolerance);
        };
        compare(0, SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
        compare(2, AdamWOptions(0.01).weight_decay(0.1));
        compare(4, AdadeltaOptions().weight_decay(0.1));
        compare(6, AdamOptions(0.01).weight_decay(0.1));
        compare(8, RMSpropOptions(0.01).momentum(0.5));
        compare(10, AdagradOptions(0.05).weight_decay(0.1));
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::test
