// Parameters of unusual shapes, dtypes and numbers.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct Odd : nn::Module {
  torch::Tensor temperature, wide, empty, empty_rows, few, steps;
  nn::Linear in{4, 6};
  Odd() {
    temperature = register_parameter("temperature", torch::tensor(0.7));
    wide = register_parameter("wide", torch::randn({1, 301}) * 0.1);
    empty = register_parameter("empty", torch::zeros({0}));
    empty_rows = register_parameter("empty_rows", torch::zeros({3, 0}));
    few = register_parameter("few", torch::randn({2, 6}));
    steps = register_buffer("steps", torch::zeros({}, torch::kLong));
    register_module("in", in);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(in->forward(x)) / temperature;
    return torch::linear(h, few) + wide.pow(2).mean() + wide.slice(1, 0, 2) + empty.sum() + empty_rows.sum();
  }
};

TEST(ZooParameters, ScalarsHugeRowsEmptyOnesAndFewerRowsThanRanksEqualTheUnshardedRun) {
  auto program = regression<Odd>([] { return std::make_shared<Odd>(); },
                                 [](Odd& m, const Batch& batch) { return m.forward(samples(batch, {4})); });
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program);
  expect_equals_unsharded(program, worlds_up_to(8));
  program.shard = shard_children_then_root;
  expect_equals_unsharded(program, worlds_up_to(3));
}

TEST(ZooParameters, RanksHoldRowsThatTogetherAreTheParameter) {
  for (int world : worlds_up_to(4)) {
    std::vector<std::shared_ptr<Odd>> models;
    for (int r = 0; r < world; ++r) models.push_back(build_alike([] { return std::make_shared<Odd>(); }));
    run_thread_ranks(world, [&](int r) {
      auto& model = *models[static_cast<size_t>(r)];
      std::vector<std::vector<int64_t>> sizes;
      for (const auto& parameter : model.parameters()) sizes.push_back(parameter.sizes().vec());
      fully_shard(static_cast<nn::Module&>(model));
      auto counts = torch::zeros({static_cast<int64_t>(sizes.size())}, torch::kDouble);
      for (size_t i = 0; i < sizes.size(); ++i) {
        auto parameter = model.parameters()[i];
        EXPECT_EQ(global_sizes(parameter), sizes[i]);
        EXPECT_EQ(parameter.size(0), local_rows(parameter).count);
        counts[static_cast<int64_t>(i)] = static_cast<double>(parameter.size(0));
      }
      auto total = mean_over_ranks(counts) * world;
      for (size_t i = 0; i < sizes.size(); ++i)
        EXPECT_EQ(total[static_cast<int64_t>(i)].item<double>(),
                  sizes[i].empty() ? 1.0 : static_cast<double>(sizes[i][0]));
    });
  }
}

// Float and double weights and integer tables in one group.
struct Mixed : nn::Module {
  nn::Linear narrow{4, 6}, fine{6, 3};
  torch::Tensor table, shift;
  Mixed() {
    register_module("narrow", narrow);
    register_module("fine", fine);
    table = register_parameter("table", torch::arange(12).reshape({4, 3}), /*requires_grad=*/false);
    shift = register_parameter("shift", torch::ones({6}));
  }
  using nn::Module::to;
  void to(torch::Dtype, bool = false) override { fine->to(torch::kDouble); }  // the others stay as they are
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(narrow->forward(x.to(torch::kFloat)) + shift);
    return fine->forward(h.to(torch::kDouble)) + table[2];
  }
};

TEST(ZooParameters, SeveralDtypesInOneGroupEqualTheUnshardedRun) {
  auto program = regression<Mixed>([] { return std::make_shared<Mixed>(); },
                                   [](Mixed& m, const Batch& batch) { return m.forward(samples(batch, {4})); });
  program.tolerance = 5e-6;
  auto run = program.run;
  program.run = [run](Mixed& model, const Role& role) {
    auto losses = run(model, role);
    EXPECT_EQ(model.narrow->weight.dtype(), torch::kFloat);
    EXPECT_EQ(model.fine->weight.dtype(), torch::kDouble);
    EXPECT_EQ(model.table.dtype(), torch::kLong);
    return losses;
  };
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program);
}

TEST(ZooParameters, ModuleWithoutParametersCanBeShardedAndCalled) {
  for (int world : worlds_up_to(3))
    run_thread_ranks(world, [&](int) {
      nn::Sequential net{nn::Tanh(), nn::Flatten()};
      auto model = fully_shard(net);
      auto x = torch::ones({2, 3}).requires_grad_();
      model(x).sum().backward();
      EXPECT_TRUE(x.grad().defined());
      EXPECT_EQ(model.stats().parameter_numel, 0);
      EXPECT_TRUE(model.parameters().empty());
      EXPECT_EQ(clip_grad_norm_(model, 1.0), 0.0);
      auto whole = summon_full_params(model);
    });
}

// A group without parameters between groups that have some.
struct Hollow : nn::Module {
  nn::Linear in{4, 5}, out{5, 2};
  nn::Sequential activation{nn::Tanh()};
  Hollow() {
    register_module("in", in);
    register_module("activation", activation);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(activation->forward(in->forward(x))); }
};

TEST(ZooParameters, GroupsAndRootsWithoutParametersEqualTheUnshardedRun) {
  auto program = regression<Hollow>([] { return std::make_shared<Hollow>(); },
                                    [](Hollow& m, const Batch& batch) { return m.forward(samples(batch, {4})); });
  program.shard = [](Hollow& m, const FullyShardOptions& options) {
    for (const auto& child : m.children()) fully_shard(*child, options);
    fully_shard(static_cast<nn::Module&>(m), options);
  };
  expect_equals_unsharded(program);
}

TEST(ZooParameters, IgnoredParametersStayWholeAndAreNotReduced) {
  for (int world : worlds_up_to(2)) {
    std::vector<std::shared_ptr<Hollow>> models;
    for (int r = 0; r < world; ++r) {
      torch::manual_seed(3);
      models.push_back(std::make_shared<Hollow>());
    }
    run_thread_ranks(world, [&](int r) {
      auto& net = *models[static_cast<size_t>(r)];
      FullyShardOptions options;
      options.ignored_params = {net.in->weight};
      auto model = fully_shard(net, options);
      EXPECT_EQ(net.in->weight.sizes(), (std::vector<int64_t>{5, 4}));
      (model(torch::ones({2, 4})).sum() * (r + 1)).backward();
      auto gradient = net.in->weight.grad();
      EXPECT_EQ(gradient.sizes(), (std::vector<int64_t>{5, 4}));
      auto first = mean_over_ranks(gradient / (r + 1));
      expect_close(first * (r + 1), gradient, 5e-6);
      EXPECT_EQ(model.stats().parameter_numel, 5 + 12);
    });
  }
}

// A hook from before sharding gets the whole gradient, and the parameter is whole meanwhile.
TEST(ZooParameters, HooksFromBeforeShardingEqualTheUnshardedRun) {
  auto program = regression<Hollow>(
      [] {
        auto net = std::make_shared<Hollow>();
        for (auto& parameter : net->parameters()) {
          for (double factor : {0.5, 3.0})
            parameter.register_hook(
                [factor, weak = c10::weak_intrusive_ptr(parameter.getIntrusivePtr())](const torch::Tensor& gradient) {
                  EXPECT_EQ(gradient.sizes(), torch::Tensor(weak.lock()).sizes());
                  return gradient * factor;
                });
        }
        return net;
      },
      [](Hollow& m, const Batch& batch) { return m.forward(samples(batch, {4})); });
  expect_equals_unsharded(program);
}

// These give a view or a copy, as strides have it.
TEST(ZooParameters, AnOperatorThatMayCopyBringsTheParameter) {
  std::vector<nn::Linear> linears(2, nullptr);
  for (auto& linear : linears) {
    torch::manual_seed(3);
    linear = nn::Linear(nn::LinearOptions(4, 6).bias(false));
  }
  run_thread_ranks(2, [&](int r) {
    auto& linear = linears[static_cast<size_t>(r)];
    const auto whole = linear->weight.detach().clone();
    auto group = fully_shard(*linear);
    for (const auto& act : std::vector<std::function<torch::Tensor(const torch::Tensor&)>>{
             [](const auto& w) { return w.transpose(0, 1).reshape({3, 8}); },
             [](const auto& w) { return w.t().flatten(); }, [](const auto& w) { return w.t().ravel(); }}) {
      ForwardScope scope(group);
      EXPECT_TRUE(torch::equal(act(linear->weight), act(whole)));
      group.reshard();
    }
  });
}

}  // namespace
}  // namespace fsdp::test
