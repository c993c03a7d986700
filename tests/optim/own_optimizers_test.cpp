// Tests of optimizers and clipping that users write. Those of docs/precision.md must equal their unsharded formulas.
// The library must refuse numbers that come from this rank's rows alone, and name the call that the user needs.

#include "../examples/own_optimizer.h"

#include "misuse/net.h"
#include "support/few_rows_net.h"

namespace fsdp::test {
namespace {

using Tensors = std::vector<torch::Tensor>;
using Step = std::function<void(int step)>;

// A net with rows that do not divide evenly, fewer rows than ranks, a kernel and vectors.
struct PlainNet : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 5, 3)};
  torch::nn::Linear mid{5, 7}, head{7, 2};
  PlainNet() {
    register_module("conv", conv);
    register_module("mid", mid);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::tanh(mid(torch::tanh(conv(x)).mean({2, 3})))); }
};

// Wraps a user's step in an optimizer, which Training requires.
struct ByHand : torch::optim::Optimizer {
  ByHand(const Tensors& parameters, std::function<void()> act)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)}, std::make_unique<torch::optim::SGDOptions>(0.1)),
        act_(std::move(act)) {}
  torch::Tensor step(LossClosure) override {
    act_();
    return {};
  }

 private:
  std::function<void()> act_;
};

using MakeStep = std::function<std::function<void()>(const Tensors&)>;

Training<PlainNet> plain_training(const FullyShardOptions& options) {
  Training<PlainNet> training;
  training.build = [] { return std::make_shared<PlainNet>(); };
  training.shard = [options](PlainNet& net) {
    shard_children_then_root(net, options);
    return group_of(net);
  };
  training.loss = [](PlainNet& net, const Batch& batch) {
    return torch::mse_loss(net.forward(samples(batch, {1, 5, 5})), samples(batch, {2}));
  };
  return training;
}

template <class Net>
Training<Net> stepped_by(const MakeStep& make, Training<Net> training) {
  training.optimizer = [make](Tensors parameters) {
    auto step = make(parameters);
    return std::make_unique<ByHand>(parameters, std::move(step));
  };
  return training;
}

Tensors matrices_of(const Tensors& parameters) {
  Tensors matrices;
  for (const auto& p : parameters)
    if (global_sizes(p).size() == 2) matrices.push_back(p);  // rows may have fewer dims
  return matrices;
}

void step_sgd(const Tensors& parameters) {
  const torch::NoGradGuard no_grad;
  for (const auto& p : parameters) p.detach().add_(p.grad(), -0.1);
}

// A step on rows, and the same formula on whole tensors.
struct OwnOptimizer {
  const char* name;
  MakeStep for_rows, for_whole;
};

const OwnOptimizer kOwnOptimizers[] = {
    {"LAMB",
     [](const Tensors& parameters) {
       return [lamb = std::make_shared<own_optimizer::Lamb>(parameters, 0.02, 0.1)] { lamb->step(); };
     },
     [](const Tensors& parameters) {
       return [parameters, m = Tensors(parameters.size()), v = Tensors(parameters.size()), t = 0]() mutable {
         const torch::NoGradGuard no_grad;
         ++t;
         for (size_t i = 0; i < parameters.size(); ++i) {
           const auto &p = parameters[i], &g = p.grad();
           m[i] = m[i].defined() ? 0.9 * m[i] + 0.1 * g : 0.1 * g;
           v[i] = v[i].defined() ? 0.999 * v[i] + 0.001 * g * g : 0.001 * g * g;
           const auto u = (m[i] / (1 - std::pow(0.9, t))) / ((v[i] / (1 - std::pow(0.999, t))).sqrt() + 1e-6) + 0.1 * p;
           p.detach().sub_(0.02 * (p.norm() / u.norm()) * u);
         }
       };
     }},
    {"adaptive clipping",
     [](const Tensors& parameters) {
       return [parameters] {
         own_optimizer::clip_adaptively(parameters, 0.05);
         step_sgd(parameters);
       };
     },
     [](const Tensors& parameters) {
       return [parameters] {
         for (const auto& p : parameters) {
           const auto unit = [](const torch::Tensor& t) {
             std::vector<int64_t> sizes(static_cast<size_t>(t.dim()), 1);
             if (t.dim() > 1) sizes[0] = t.size(0);
             return (t.dim() > 1 ? t.flatten(1).norm(2, 1) : t.norm()).view(sizes);
           };
           const torch::NoGradGuard no_grad;
           p.mutable_grad().mul_((unit(p).clamp_min(1e-3) * 0.05 / unit(p.grad()).clamp_min(1e-6)).clamp_max(1));
         }
         step_sgd(parameters);
       };
     }},
    {"Muon",
     [](const Tensors& parameters) {
       return [muon = std::make_shared<own_optimizer::Muon>(matrices_of(parameters), 0.02)] { muon->step(); };
     },
     [](const Tensors& parameters) {
       return [matrices = matrices_of(parameters), b = Tensors(parameters.size())]() mutable {
         const torch::NoGradGuard no_grad;
         for (size_t i = 0; i < matrices.size(); ++i) {
           const auto& p = matrices[i];
           b[i] = b[i].defined() ? 0.95 * b[i] + p.grad() : p.grad().clone();
           auto x = p.grad() + 0.95 * b[i];
           x = x / (x.norm() + 1e-7);
           for (int step = 0; step < 5; ++step) {
             const auto a = x.matmul(x.t());
             x = 3.4445 * x - 4.7750 * a.matmul(x) + 2.0315 * a.matmul(a).matmul(x);
           }
           p.detach().sub_(x * (0.02 * std::sqrt(std::max<double>(1.0, static_cast<double>(p.size(0)) / p.size(1)))));
         }
       };
     }},
    {"Adafactor's second moments",
     [](const Tensors& parameters) {
       return [parameters] {
         const torch::NoGradGuard no_grad;
         for (const auto& p : parameters) {
           const auto sizes = global_sizes(p);
           if (sizes.size() != 2) continue;
           const auto squares = p.grad().pow(2) + 1e-12;
           const auto rows = fsdp::sum(squares, {1}, true) / sizes[1];
           const auto columns = fsdp::sum(squares, {0}, true) / sizes[0];
           const auto update = p.grad() * rows.rsqrt() * columns.rsqrt() * rows.mean().sqrt();
           const double rms = fsdp::norm({update}) / std::sqrt(static_cast<double>(c10::multiply_integers(sizes)));
           p.detach().add_(update, -0.05 / std::max(1.0, rms));
         }
       };
     },
     [](const Tensors& parameters) {
       return [parameters] {
         const torch::NoGradGuard no_grad;
         for (const auto& p : matrices_of(parameters)) {
           const auto squares = p.grad().pow(2) + 1e-12;
           const auto v = squares.mean(1, true) * squares.mean(0, true) / squares.mean();
           const auto update = p.grad() / v.sqrt();
           p.detach().sub_(0.05 * update / update.pow(2).mean().sqrt().clamp_min(1.0));
         }
       };
     }},
    {"a moving average, sign, clamp, lerp",
     [](const Tensors& parameters) {
       return [parameters, ema = Tensors()]() mutable {
         const torch::NoGradGuard no_grad;
         for (size_t i = 0; i < parameters.size(); ++i) {
           const auto& p = parameters[i];
           if (ema.size() <= i) ema.push_back(p.detach().clone());
           ema[i].lerp_(p.detach(), 0.3);
           const auto update = torch::where(p.grad() > 0, p.grad().sign() * 0.01, p.grad().clamp(-0.02, 0.02));
           p.detach().sub_(update + (p - ema[i]).abs() * 0.1);
         }
       };
     },
     {}},
};

template <class Net>
void expect_unsharded_formulas(Training<Net> (*training)(const FullyShardOptions&),
                               const std::vector<Strategy>& strategies) {
  for (const auto& own : kOwnOptimizers)
    for (const auto strategy : strategies) {
      const auto sharded = stepped_by(own.for_rows, training({.strategy = strategy}));
      const auto unsharded = stepped_by(own.for_whole ? own.for_whole : own.for_rows, training({}));
      for (const int world : worlds_up_to(3)) {
        const auto expected = train_unsharded(unsharded, world);
        run_with_models(world, [&] { return build_model(sharded); }, [&](Net& net, int) {
          SCOPED_TRACE(c10::str(own.name, ", ", strategy, ", world ", world));
          expect_same_outcome(expected, train_sharded(sharded, net), 1e-9);
        });
      }
    }
}

TEST(OwnOptimizers, EqualTheirUnshardedFormulas) {
  expect_unsharded_formulas(plain_training, {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer,
                                             Strategy::kReplicate});
}

TEST(OwnOptimizers, EqualTheirUnshardedFormulasOnParametersWithFewRows) {
  expect_unsharded_formulas(few_rows_training, {Strategy::kFullShard});
}

// An act on rows, and the words of its error.
struct OfRows {
  std::function<void(const torch::Tensor& p)> act;
  const char* remedy;
};

const OfRows kOfRows[] = {
    {[](const torch::Tensor& p) { p.grad().pow(2).sum().item<double>(); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { (p * p).mean(0); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { (p - p.grad()).norm(); }, "fsdp::norm"},
    {[](const torch::Tensor& p) { p.grad().isnan().any(); }, "fsdp::any"},
    {[](const torch::Tensor& p) { p.grad().isfinite().all(); }, "fsdp::all"},
    {[](const torch::Tensor& p) { (0.1 * p.grad()).mm(torch::ones({4, 2})); }, "fsdp::full_tensor"},
    {[](const torch::Tensor& p) { p.grad().abs().max(); }, "fsdp::LocalRows"},
    {[](const torch::Tensor& p) { torch::zeros_like(p.detach()).add_(p.grad()).sum(); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { torch::zeros(p.sizes()).add_(p.grad()).sum(); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { at::_foreach_mul({p.grad(), p.grad()}, 2.0)[1].sum(); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { (p.grad() * 2).view({-1}).dot(p.detach().view({-1})); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { (p.grad() * 2).t().detach().sum(); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { (p.grad() * 2)[0]; }, "fsdp::LocalRows"},
    {[](const torch::Tensor& p) { (p.grad() * 2).t().clone(); }, "fsdp::LocalRows"},
    {[](const torch::Tensor& p) { p.grad().t() * 2; }, "fsdp::LocalRows"},
    {[](const torch::Tensor& p) { at::absolute(p.grad()).max(); }, "fsdp::LocalRows"},
    {[](const torch::Tensor& p) { p.detach().clone().sum(); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { p.detach().to(torch::kFloat).sum(); }, "fsdp::sum"},
    {[](const torch::Tensor& p) { torch::empty_like(p.detach()).normal_(); }, "fsdp::LocalRows"},
    {[](const torch::Tensor& p) { torch::zeros({7, 4}).copy_(0.9 * torch::ones({7, 4}) + 0.1 * p); },
     "fsdp::full_tensor"},
};

TEST(WhatIsMadeOfRows, IsRefusedWhereItsNumbersWouldBeThisRanks) {
  for (const int world : {2, 3})
    run_thread_ranks(world, [&](int) {
      torch::nn::Linear net = build_alike([] { return torch::nn::Linear(4, 7); });
      const auto group = fully_shard(*net);
      {
        const ForwardScope scope(group);
        net(torch::ones({1, 4})).sum().backward();
      }
      const torch::NoGradGuard no_grad;
      for (const auto& [act, remedy] : kOfRows)
        expect_error([&, &act = act] { act(net->weight); }, {"@aten::", "parameter 'weight'", remedy});
      const LocalRows local(group);  // inside LocalRows, the sum of this rank's rows is allowed
      for (const auto& [act, remedy] : kOfRows)
        if (std::string(remedy) != "fsdp::full_tensor") EXPECT_NO_THROW(act(net->weight));
    });
}

TEST(WhatIsMadeOfRows, IsWholeWhereEveryRankHasAllRows) {
  run_thread_ranks(2, [&](int) {
    torch::nn::Linear net = build_alike([] { return torch::nn::Linear(4, 7); });
    const auto group = fully_shard(*net, {.strategy = Strategy::kReplicate});
    {
      const ForwardScope scope(group);
      net(torch::ones({1, 4})).sum().backward();
    }
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(net->weight.grad().pow(2).sum().item<double>(), 28);
    EXPECT_EQ(fsdp::sum({net->weight.grad().pow(2)}), 28);
    EXPECT_TRUE(fsdp::all({net->weight.grad().isfinite()}));
  });
}

// On 2 ranks the rows of the first parameter are square, so their sizes do not show that a tensor is transposed.
TEST(WhatIsMadeOfRows, IsNotTakenTransposed) {
  run_thread_ranks(2, [&](int) {
    torch::nn::Linear net = build_alike([] { return torch::nn::Linear(4, 8); });
    fully_shard(*net);
    const torch::NoGradGuard no_grad;
    const auto transposed = (net->weight * 2).t();
    expect_error([&] { return full_tensor(transposed); }, {"@full_tensor", "parameter 'weight'", "found a view"});
    expect_error([&] { return fsdp::sum({transposed}); }, {"@sum", "parameter 'weight'", "found a view"});
    expect_error([&] { return fsdp::sum(transposed, {0}); }, {"@sum", "parameter 'weight'", "found a view"});
  });
}

// Replicas have the same rows, so they may sum them.
TEST(WhatIsMadeOfRows, MayBeSummedOverReplicas) {
  run_thread_ranks(4, [&](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    torch::nn::Linear net = build_alike([] { return torch::nn::Linear(4, 7); });
    fully_shard(*net, {.mesh = mesh});
    const torch::NoGradGuard no_grad;
    const auto rows = torch::zeros_like(net->weight.detach()).add_(net->weight, rank < 2 ? 1 : 2);
    const auto sum = fsdp::all_reduce(rows, ReduceOp::kSum, mesh["replicate"].process_group());
    EXPECT_TRUE(torch::equal(sum, plain_copy(net->weight) * 3));
    expect_error([&] { return fsdp::all_reduce(rows); }, {"all_reduce", "the result of an operator on the rows"});
  });
}

// Clips gradients as many programs do by hand, with the library's functions over all ranks; one rank has a NaN.
TEST(WhatIsMadeOfRows, IsAnsweredOverAllRanks) {
  run_thread_ranks(3, [&](int rank) {
    torch::nn::Linear net = build_alike([] { return torch::nn::Linear(4, 7); });
    fully_shard(*net);
    const auto p = net->weight;
    const auto whole = full_tensor(p);
    const torch::NoGradGuard no_grad;
    EXPECT_NEAR(fsdp::sum({p.detach().pow(2)}), whole.pow(2).sum().item<double>(), 1e-6);
    EXPECT_EQ(fsdp::sum({p > 0}), (whole > 0).sum().item<double>());
    EXPECT_EQ(fsdp::norms({p * 2, net->bias, whole}, std::numeric_limits<double>::infinity())[0],
              (whole * 2).abs().max().item<double>());
    EXPECT_NEAR(fsdp::norms({p * 2, whole})[1], whole.norm().item<double>(), 1e-6);
    EXPECT_TRUE(torch::equal(full_tensor(p * 2), whole * 2));
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{0}, {1}, {-1}, {0, 1}, {}})
      for (const bool keepdim : {false, true})
        EXPECT_TRUE(torch::allclose(fsdp::sum(p * 3, dims, keepdim), (whole * 3).sum(dims, keepdim))) << dims;
    EXPECT_FALSE(fsdp::any({p.isnan(), net->bias.isnan()}));
    EXPECT_TRUE(fsdp::all({p.isfinite()}));
    p.mutable_grad() = torch::full_like(p.detach(), rank == 1 ? NAN : 1.0);
    EXPECT_TRUE(fsdp::any({p.grad().isnan()})) << "one rank has a NaN";
    EXPECT_FALSE(fsdp::all({p.grad().isfinite()}));
    EXPECT_TRUE(fsdp::any({p > 1e9, torch::ones({2})})) << "what every rank has whole counts";
    EXPECT_TRUE(torch::equal(fsdp::sum(p > 0, {0}), (whole > 0).sum({0}))) << "counts are integers";
    // The list contains rows and other tensors, and some updates change some columns only.
    const auto made = at::_foreach_mul({p.detach(), torch::ones({2})}, 2.0);
    EXPECT_EQ(made[1].sum().item<double>(), 4);
    p.detach().slice(1, 0, 2).sub_(p.detach().slice(1, 0, 2) * 0.5);
    p.detach().select(1, 3).mul_(torch::ones_like(p.detach().select(1, 3)) * 2);
    auto expected = whole.clone();
    expected.slice(1, 0, 2).mul_(0.5);
    expected.select(1, 3).mul_(2);
    EXPECT_TRUE(torch::equal(full_tensor(p), expected));
  });
}

}  // namespace
}  // namespace fsdp::test
