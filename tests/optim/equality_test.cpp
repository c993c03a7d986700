// Compares fsdp::optim's optimizers with torch::optim's, which step the unsharded oracle.

#include <fsdp/optim.h>

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

// One of torch's optimizers and the same one of fsdp.
template <class TorchsOptimizer, class OurOptimizer>
struct Both {
  using Torchs = TorchsOptimizer;
  using Ours = OurOptimizer;
};
using BothAdamW = Both<torch::optim::AdamW, optim::AdamW>;
using BothAdam = Both<torch::optim::Adam, optim::Adam>;
using BothRMSprop = Both<torch::optim::RMSprop, optim::RMSprop>;
using BothAdagrad = Both<torch::optim::Adagrad, optim::Adagrad>;
using BothSGD = Both<torch::optim::SGD, optim::SGD>;

template <class Kind, class Parameters, class Options>
std::unique_ptr<Optimizer> make_optimizer(bool ours, const Parameters& parameters, const Options& options) {
  if (ours) return std::make_unique<typename Kind::Ours>(parameters, options);
  return std::make_unique<typename Kind::Torchs>(parameters, options);
}

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(OptimNet&, bool ours)>;

// Returns a program of four steps with two micro-batches each and a falling learning rate.
Program<OptimNet> program_with(const MakeOptimizer& make) {
  Program<OptimNet> program;
  program.build = [] { return std::make_shared<OptimNet>(); };
  program.shard = [](OptimNet& net, const FullyShardOptions& options) { shard_in_two(net, options); };
  program.run = [make](OptimNet& net, const Role& role) {
    auto optimizer = make(net, role.is_sharded());
    Values losses;
    for (int step = 0; step < 4; ++step) {
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

struct EqualityCase {
  const char* name;
  MakeOptimizer make;
};

template <class Kind, class Options>
EqualityCase with(const char* name, const Options& options) {
  return {name, [=](OptimNet& net, bool ours) { return make_optimizer<Kind>(ours, net.parameters(), options); }};
}

// Returns a case whose optimizer's parameter groups have different options.
template <class Kind, class Options>
EqualityCase with_groups(const char* name, const Options& matrices, const Options& vectors, const Options& scale) {
  return {name, [=](OptimNet& net, bool ours) {
            return make_optimizer<Kind>(ours, three_groups(net, matrices, vectors, scale), Options(0.02));
          }};
}

const std::vector<EqualityCase> kEqualityCases{
    with<BothAdamW>("AdamW", AdamWOptions(0.01).amsgrad(true).betas({0.8, 0.95}).eps(1e-6).weight_decay(0)),
    with<BothAdam>("Adam", AdamOptions(0.01).amsgrad(true).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1)),
    // A gradient that is nearly 0 has a rounding error in fp32. 1 / eps magnifies the error, and momentum adds it up.
    // The centered variant subtracts two nearly equal means, and so magnifies it more.
    with<BothRMSprop>("RMSprop", RMSpropOptions(0.003).eps(0.1).centered(true).momentum(0.5).weight_decay(0.01)),
    with<BothAdagrad>("Adagrad",
                      AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.2).eps(1e-6)),
    with<BothSGD>("SGD", SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01)),
    with<BothSGD>("SGDNesterov", SGDOptions(0.1).momentum(0.9).nesterov(true)),
    with_groups<BothAdamW>("AdamWGroups", AdamWOptions(0.02).weight_decay(0.1), AdamWOptions(0.01).weight_decay(0.001),
                           AdamWOptions(0.003).amsgrad(true)),
    with_groups<BothAdam>("AdamGroups", AdamOptions(0.02).weight_decay(0.1), AdamOptions(0.01),
                          AdamOptions(0.003).amsgrad(true)),
    with_groups<BothRMSprop>("RMSpropGroups", RMSpropOptions(0.003).eps(1e-4).momentum(0.9),
                             RMSpropOptions(0.003).alpha(0.9), RMSpropOptions(0.001).eps(1e-4).centered(true)),
    with_groups<BothAdagrad>("AdagradGroups", AdagradOptions(0.05).weight_decay(0.1),
                             AdagradOptions(0.02).lr_decay(0.5), AdagradOptions(0.01).eps(1e-3)),
    with_groups<BothSGD>("SGDGroups", SGDOptions(0.1).momentum(0.9), SGDOptions(0.05),
                         SGDOptions(0.02).weight_decay(0.1))};

class EveryOptimizer : public testing::TestWithParam<EqualityCase> {};

TEST_P(EveryOptimizer, EqualsTorchs) {
  auto program = program_with(GetParam().make);
  expect_equals_unsharded(program, {1, worlds_up_to(4).back()});
  program.shard = shard_as_one_group;
  program.dtype = torch::kFloat;
  program.tolerance = 5e-6;
  expect_equals_unsharded(program, {2});
}

INSTANTIATE_TEST_SUITE_P(OptimEquality, EveryOptimizer, testing::ValuesIn(kEqualityCases),
                         [](const auto& one) { return std::string(one.param.name); });

// The results of torch.optim.Adadelta([p], lr=0.7, rho=0.8, eps=1e-5, weight_decay=0.1) in PyTorch 2.13 for the same
// gradients. Its kernels for fp32 contain fused multiply-adds, which round once less, so state may differ by two units
// in the last place.
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
    auto options = std::make_unique<AdadeltaOptions>(AdadeltaOptions(0.7).rho(0.8).eps(1e-5).weight_decay(0.1));
    optim::Adadelta optimizer({torch::optim::OptimizerParamGroup({parameter}, std::move(options))});
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

TEST(OptimEquality, AnOptimizerMadeBeforeShardingAndAParameterGroupAddedLaterEqualTorchs) {
  auto program = program_with({});
  program.shard = [](OptimNet&, const FullyShardOptions&) {};
  program.run = [](OptimNet& net, const Role& role) {
    std::vector<torch::Tensor> some{net.in->weight, net.scale}, others{net.in->bias, net.out->weight};
    auto optimizer = make_optimizer<BothAdamW>(role.is_sharded(), some, AdamWOptions(0.02));
    if (role.is_sharded()) shard_in_two(net);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) optimizer->add_param_group({others, std::make_unique<AdamWOptions>(0.005)});
      net.zero_grad();
      backward(net, role, step);
      optimizer->step();
    }
    return Values{};
  };
  expect_equals_unsharded(program, {1, 3});
}

// One optimizer of two sharded models, one of which lists a tied weight twice, and a plain tensor.
struct TwoNets : torch::nn::Module {
  std::shared_ptr<OptimNet> net = std::make_shared<OptimNet>();
  torch::nn::Linear first{5, 5};
  torch::Tensor plain = torch::full({4, 3}, 0.25);  // not registered, so every rank steps all of it
  TwoNets() {
    register_module("net", net);
    register_module("first", first);
    register_parameter("tied", first->weight);
  }
};

TEST(OptimEquality, SeveralModelsTiedWeightsAndPlainTensorsInOneOptimizerEqualTorchs) {
  Program<TwoNets> program;
  program.build = [] { return std::make_shared<TwoNets>(); };
  program.shard = [](TwoNets& nets, const FullyShardOptions& options) {
    shard_in_two(*nets.net, options);
    fully_shard(static_cast<torch::nn::Module&>(nets), options);
  };
  program.run = [](TwoNets& nets, const Role& role) {
    auto plain = nets.plain.to(torch::kDouble).requires_grad_();
    auto parameters = nets.parameters();
    parameters.push_back(plain);
    auto optimizer = make_optimizer<BothSGD>(role.is_sharded(), parameters, SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      const auto batch = role.batch(step);
      const auto loss = role.whole(nets, [&] {
        const auto tied = torch::linear(nets.first->forward(samples(batch, {5})), nets.first->weight);
        return nets.net->loss(batch) + distance_from_targets(tied, batch);
      });
      loss.backward();
      plain.pow(2).sum().backward();
      optimizer->step();
    }
    return Values{plain.detach()};
  };
  expect_equals_unsharded(program, {1, 3});
}

template <class Kind, class Options>
void expect_bf16_as_torchs(const Options& options) {
  const auto trained = [&](bool ours) {
    const auto parameter = samples({9, 3, 1}, {37, 5}, torch::kBFloat16).requires_grad_();
    const auto optimizer = make_optimizer<Kind>(ours, std::vector{parameter}, options);
    for (int step = 0; step < 4; ++step) {
      parameter.mutable_grad() = samples({step, 3, 1}, {37, 5}, torch::kBFloat16);
      optimizer->step();
    }
    return parameter;
  };
  expect_close(trained(false), trained(true), 0.02);
}

TEST(OptimEquality, Bf16IsThatOfTorchsButForRoundings) {
  expect_bf16_as_torchs<BothSGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  expect_bf16_as_torchs<BothAdamW>(AdamWOptions(0.01).weight_decay(0.1));
  expect_bf16_as_torchs<BothAdam>(AdamOptions(0.01).weight_decay(0.1));
  expect_bf16_as_torchs<BothRMSprop>(RMSpropOptions(0.01).momentum(0.5));
  expect_bf16_as_torchs<BothAdagrad>(AdagradOptions(0.05).weight_decay(0.1));
}

}  // namespace
}  // namespace fsdp::test
