// Tests of mixed precision: rows in fp32, whole parameters and reductions in other dtypes.

#include <ATen/autocast_mode.h>

#include "support/disk_folder.h"
#include "support/precision_net.h"

namespace fsdp::test {
namespace {

constexpr int kSteps = 3;
constexpr Strategy kEveryStrategy[]{Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer,
                                    Strategy::kReplicate};

torch::optim::SGD sgd_of(const MixedNetImpl& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

// Trains one rank's part of what train_with_casts computes.
Outcome train(MixedNetImpl& net, const FullyShardOptions& options, int micro_batches = 1) {
  const auto group = shard_mixed_net(net, options);
  auto optimizer = sgd_of(net);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    const auto run = [&](int micro) {
      {
        ForwardScope scope(group);
        loss = mixed_net_loss(net, {step * micro_batches + micro, rank() * 2, 2});
      }
      loss.backward();
    };
    for (int micro = 0; micro + 1 < micro_batches; ++micro) {
      const NoSync no_sync = group.no_sync();
      run(micro);
    }
    run(micro_batches - 1);
    optimizer.step();
    auto sum = loss.detach().reshape({1}).clone();
    default_process_group()->communicator().all_reduce(sum, ReduceOp::kSum, {"loss", {}})->wait();
    outcome.losses.push_back(sum.item<double>() / world_size());
  }
  for (const auto& parameter : net.parameters()) outcome.parameters.push_back(full_tensor(parameter));
  return outcome;
}

void expect_bits_of_casts(const FullyShardOptions& options, int world, int micro_batches = 1,
                          const ThreadRanksOptions& ranks = {}) {
  const auto hosts = ranks.hosts.empty() ? test_hosts(world) : ranks.hosts;
  const auto expected = train_with_casts(*options.mp_policy, kSteps, hosts, micro_batches);
  run_thread_ranks(
      world,
      [&](int) {
        SCOPED_TRACE(c10::str("world ", world, ", ", *options.mp_policy->param_dtype, " reduced in ",
                              options.mp_policy->reduce_dtype.value_or(*options.mp_policy->param_dtype)));
        const auto net = build_alike([] { return std::make_shared<MixedNetImpl>(); });
        expect_same_bits(expected, train(*net, options, micro_batches));
      },
      ranks);
}

const MixedPrecisionPolicy kPolicies[]{keeping_norms(torch::kBFloat16), keeping_norms(torch::kBFloat16, torch::kFloat),
                                       keeping_norms(torch::kHalf), keeping_norms(torch::kHalf, torch::kFloat),
                                       keeping_norms(torch::kFloat, torch::kBFloat16)};

TEST(Precision, TrainsToTheBitsOfTheCastsWrittenOut) {
  for (const int world : worlds_up_to(4))
    for (const auto& policy : kPolicies) expect_bits_of_casts({.mp_policy = policy}, world);
}

TEST(Precision, IsTheSameWithEveryStrategy) {
  for (const auto strategy : kEveryStrategy)
    for (const auto& policy : {keeping_norms(torch::kBFloat16), keeping_norms(torch::kBFloat16, torch::kFloat)}) {
      SCOPED_TRACE(c10::str(strategy));
      expect_bits_of_casts({.strategy = strategy, .mp_policy = policy, .bucket_cap_bytes = 300}, 3);
    }
}

TEST(Precision, IsTheSameBetweenHosts) {
  for (const auto& policy : {keeping_norms(torch::kBFloat16, torch::kFloat), keeping_norms(torch::kHalf)}) {
    expect_bits_of_casts({.mp_policy = policy}, 4, 1, {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});
    expect_bits_of_casts({.strategy = Strategy::kReplicate, .mp_policy = policy}, 3, 1,
                         {.backend = "hierarchical", .hosts = {0, 0, 1}});
  }
}

TEST(Precision, IsTheSameWithRowsInFiles) {
  const DiskFolder folder;
  for (const auto& policy : {keeping_norms(torch::kBFloat16), keeping_norms(torch::kBFloat16, torch::kFloat)})
    expect_bits_of_casts({.mp_policy = policy, .disk_policy = DiskOffloadPolicy{.folder = folder.path()}}, 3, 2);
}

TEST(Precision, GradientsOfSeveralBackwardsAddUpInTheDtypeOfTheRows) {
  for (const auto strategy : kEveryStrategy) {
    SCOPED_TRACE(c10::str(strategy));
    expect_bits_of_casts({.strategy = strategy, .mp_policy = keeping_norms(torch::kBFloat16)}, 2, 3);
  }
}

// One parameter is frozen in the first backward, and begins to train in the middle of an accumulation.
TEST(Precision, OfParametersThatTrainLaterIsTheSame) {
  run_thread_ranks(3, [](int) {
    const auto gradients_of = [](const std::vector<int>& steps, bool joins_last) {
      const auto net = build_alike([] { return std::make_shared<MixedNetImpl>(); });
      const auto group = shard_mixed_net(*net, {.mp_policy = keeping_norms(torch::kBFloat16, torch::kFloat)});
      auto& late = net->blocks[1]->as<torch::nn::Linear>()->weight;
      late.set_requires_grad(!joins_last);
      for (const int step : steps) {
        group.set_requires_gradient_sync(step != 1);
        if (step == 2) late.set_requires_grad(true);
        const auto loss = in_scope(group, [&] { return mixed_net_loss(*net, {step, rank() * 2, 2}); });
        loss.backward();
      }
      std::vector<torch::Tensor> all{full_grad(late)};
      for (const auto& parameter : net->parameters())
        if (parameter.requires_grad() && !parameter.is_same(late)) all.push_back(full_grad(parameter));
      return all;
    };
    const auto always = gradients_of({0, 1, 2}, false), joined = gradients_of({0, 1, 2}, true);
    EXPECT_TRUE(torch::equal(joined[0], gradients_of({2}, false)[0])) << "of the last backward alone";
    for (size_t i = 1; i < joined.size(); ++i) EXPECT_TRUE(torch::equal(always[i], joined[i])) << i;
  });
}

TEST(Precision, OperatorsSeeWholeParametersInTheirDtypeAndOptimizersRowsInTheirs) {
  run_thread_ranks(2, [](int) {
    const auto net = build_alike([] { return std::make_shared<MixedNetImpl>(); });
    const auto values = net->head->weight.detach().clone();
    const auto group = shard_mixed_net(*net, {.mp_policy = keeping_norms(torch::kBFloat16)});
    EXPECT_EQ(net->head->weight.scalar_type(), torch::kFloat);
    torch::Tensor out;
    {
      ForwardScope scope(group);
      EXPECT_EQ(net->head->weight.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(net->norm->weight.scalar_type(), torch::kFloat);
      EXPECT_TRUE(torch::equal(net->head->weight.detach().clone(), values.to(torch::kBFloat16)));
      out = net->forward(mixed_net_ids({0, 0, 2}));
    }
    EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
    out.sum().backward();
    EXPECT_EQ(net->head->weight.grad().scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(full_tensor(net->head->weight), values));  // not rounded
  });
}

TEST(Precision, WritesToRowsAreInTheNextForward) {
  run_thread_ranks(3, [](int) {
    const auto net = build_alike([] { return std::make_shared<MixedNetImpl>(); });
    const auto group = shard_mixed_net(*net, {.mp_policy = keeping_norms(torch::kBFloat16)});
    for (int i = 0; i < 3; ++i) {
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : net->parameters()) parameter.fill_(i);
      ForwardScope scope(group);
      EXPECT_EQ(net->head->weight.sum().item<double>(), 60.0 * i);
      EXPECT_EQ(net->blocks[1]->as<torch::nn::Linear>()->weight.sum().item<double>(), 144.0 * i);
    }
  });
}

TEST(Precision, CallsCastTheirArgumentsAndResults) {
  auto policy = keeping_norms(torch::kBFloat16);
  policy.output_dtype = torch::kDouble;
  run_thread_ranks(2, [&](int) {
    struct SeesImpl : torch::nn::Module {
      torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
      std::optional<at::ScalarType> seen;
      torch::Tensor forward(const torch::Tensor& x) {
        seen = x.scalar_type();
        return linear->forward(x);
      }
    };
    for (const bool casts : {true, false}) {
      auto with_casts = policy;
      with_casts.cast_forward_inputs = casts;
      const auto net = build_alike([] { return std::make_shared<SeesImpl>(); });
      auto model = fully_shard(torch::nn::ModuleHolder<SeesImpl>(net), {.mp_policy = with_casts});
      EXPECT_EQ(model(torch::ones({2, 4})).scalar_type(), torch::kDouble);
      EXPECT_EQ(net->seen, casts ? torch::kBFloat16 : torch::kFloat);
    }
  });
}

// BatchNorm keeps its precision without being listed, because its operator needs parameters of the dtype of its running
// statistics, and writes those statistics.
TEST(Precision, RunningStatisticsAreUpdatedInFullPrecision) {
  struct ConvNetImpl : torch::nn::Module {
    torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(3, 6, 3));
    torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(6));
    torch::Tensor forward(const torch::Tensor& x) { return norm->forward(conv->forward(x)); }
  };
  run_thread_ranks(2, [](int) {
    const auto net = build_alike([] { return std::make_shared<ConvNetImpl>(); });
    const auto low = build_alike([] { return std::make_shared<ConvNetImpl>(); });
    low->conv->to(torch::kBFloat16);
    const auto x = torch::linspace(-1, 1, 2 * 3 * 5 * 5).reshape({2, 3, 5, 5});
    low->norm->forward(low->conv->forward(x.to(torch::kBFloat16)).to(torch::kFloat));
    auto model = fully_shard(torch::nn::ModuleHolder<ConvNetImpl>(net),
                             {.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}});
    model(x).sum().backward();
    EXPECT_TRUE(torch::equal(net->norm->running_var, low->norm->running_var));
    EXPECT_TRUE(torch::equal(net->norm->running_mean, low->norm->running_mean));
  });
}

TEST(Precision, StaysWhenRowsMoveToAnotherStrategyOrDtype) {
  run_thread_ranks(3, [](int) {
    const auto net = build_alike([] { return std::make_shared<MixedNetImpl>(); });
    const auto values = net->head->weight.detach().clone();
    const auto group = shard_mixed_net(*net, {.mp_policy = keeping_norms(torch::kBFloat16)});
    auto optimizer = sgd_of(*net);
    const auto dtype_in_scope = [&] {
      ForwardScope scope(group);
      mixed_net_loss(*net, {0, 0, 2}).backward();
      return net->head->weight.scalar_type();
    };
    for (const auto strategy : kEveryStrategy) {
      set_strategy(group, optimizer, strategy);
      EXPECT_TRUE(torch::equal(full_tensor(net->head->weight), values)) << strategy;
      EXPECT_EQ(dtype_in_scope(), torch::kBFloat16);
      net->zero_grad();
    }
    to(group, torch::kDouble);
    EXPECT_EQ(net->head->weight.scalar_type(), torch::kDouble);
    EXPECT_EQ(dtype_in_scope(), torch::kBFloat16);
    EXPECT_EQ(net->head->weight.grad().scalar_type(), torch::kDouble);
  });
}

// LibTorch would cache autocast's casts of parameters until autocast ends. The casts are whole copies, and stale after
// a step.
TEST(Precision, AutocastInAScopeCachesNothing) {
  run_thread_ranks(2, [](int) {
    const auto net = build_alike([] { return std::make_shared<torch::nn::LinearImpl>(4, 4); });
    auto model = fully_shard(torch::nn::Linear(net));
    at::autocast::set_autocast_enabled(at::kCPU, true);
    for (int i = 1; i < 4; ++i) {
      {
        const torch::NoGradGuard no_grad;
        net->weight.fill_(i);
        net->bias.zero_();
      }
      const auto out = model(torch::ones({1, 4}));
      EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(out[0][0].item<double>(), 4.0 * i);
      out.sum().backward();
      EXPECT_EQ(net->weight.grad().scalar_type(), torch::kFloat);
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled()) << "outside of scopes it is as it was";
    }
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  });
}

}  // namespace
}  // namespace fsdp::test
