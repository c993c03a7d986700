// Tests of parameters with unusual shapes, dtypes and numbers.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

struct Odd : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6));
  Tensor temperature = register_parameter("temperature", torch::tensor(0.7));
  Tensor wide = register_parameter("wide", torch::randn({1, 301}) * 0.1);
  Tensor empty = register_parameter("empty", torch::zeros({0}));
  Tensor empty_rows = register_parameter("empty_rows", torch::zeros({3, 0}));
  Tensor few = register_parameter("few", torch::randn({2, 6}));
  Tensor steps = register_buffer("steps", torch::zeros({}, torch::kLong));
  Tensor forward(const Tensor& x) {
    auto h = torch::tanh(in->forward(x)) / temperature;
    return torch::linear(h, few) + wide.pow(2).mean() + wide.slice(1, 0, 2) + empty.sum() + empty_rows.sum();
  }
};

TEST(ZooParameters, ScalarsHugeRowsEmptyOnesAndFewerRowsThanRanksEqualTheUnshardedRun) {
  for (auto* shard : {shard_as_one_group, shard_children_then_root}) {
    auto program = trained<Odd>(shard);
    program.largest_world = 8;
    expect_equals_unsharded(program);
  }
}

TEST(ZooParameters, WholeTensorsGradientsRowsAndSizesAreThoseOfTheUnshardedModel) {
  const auto whole_of = [](const Tensor& parameter, const Role& role) {
    return role.is_sharded() ? full_tensor(parameter) : parameter.detach().clone();
  };
  expect_same_sharded<Odd>([&](Odd& net, const Role& role) {
    learn(net, role);
    Values values = gradients_of(net, role);
    role.whole(net, [&] { values.push_back(whole_of(net.in->weight, role)); });
    for (const auto& parameter : net.parameters()) {
      values.push_back(whole_of(parameter, role));
      EXPECT_FALSE(values.back().requires_grad());
      auto sizes = global_sizes(parameter);
      values.push_back(torch::tensor(sizes.empty() ? std::vector<int64_t>{1} : sizes).to(torch::kDouble));
      auto rows = local_rows(parameter);
      auto held = torch::zeros({sizes.empty() ? 1 : sizes[0]}, torch::kDouble);
      EXPECT_EQ(rows.count, role.is_sharded() ? parameter.size(0) : held.size(0));
      held.slice(0, rows.first, rows.first + rows.count).fill_(role.is_sharded() ? role.world : 1.0);
      values.push_back(held);  // each row is on one rank only
    }
    return values;
  });
}

// One param group has float and double weights and integer tables.
struct Mixed : nn::Module {
  nn::Linear narrow = register_module("narrow", nn::Linear(4, 6)), fine = register_module("fine", nn::Linear(6, 3));
  Tensor table = register_parameter("table", torch::arange(12).reshape({4, 3}), /*requires_grad=*/false);
  Tensor shift = register_parameter("shift", torch::ones({6}));
  using nn::Module::to;
  void to(torch::Dtype, bool = false) override { fine->to(torch::kDouble); }  // the other modules keep their dtypes
  Tensor forward(const Tensor& x) {
    auto h = torch::tanh(narrow->forward(x.to(torch::kFloat)) + shift);
    return fine->forward(h.to(torch::kDouble)) + table[2];
  }
};

TEST(ZooParameters, SeveralDtypesInOneGroupEqualTheUnshardedRun) {
  auto program = program_of<Mixed>(
      [](Mixed& model, const Role& role) {
        auto losses = train(model, role, loss_of<Mixed>);
        EXPECT_EQ(model.narrow->weight.dtype(), torch::kFloat);
        EXPECT_EQ(model.fine->weight.dtype(), torch::kDouble);
        EXPECT_EQ(model.table.dtype(), torch::kLong);
        return losses;
      },
      shard_as_one_group);
  program.tolerance = 5e-6;
  expect_equals_unsharded(program);
}

// A module whose own param group is empty, because its child has taken its parameters. It stands between groups that
// have some.
struct Hollow : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 5));
  nn::Sequential activation = register_module("activation", nn::Sequential(nn::Linear(5, 5), nn::Tanh()));
  nn::Linear out = register_module("out", nn::Linear(5, 2));
  Tensor forward(const Tensor& x) { return out->forward(activation->forward(in->forward(x))); }
};

void shard_every_child(nn::Module& m, const FullyShardOptions& options) {
  fully_shard(*m.named_modules()["activation.0"], options);
  for (const auto& child : m.children()) fully_shard(*child, options);
  fully_shard(m, options);
}

// The hooks see this rank's whole gradients before they are summed. The parameter is whole while they run, although
// some groups, the root's among them, have no parameters of their own.
TEST(ZooParameters, HooksFromBeforeAndAfterShardingEqualTheUnshardedRun) {
  const auto add_hook = [](const Tensor& parameter, double factor) {
    parameter.register_hook([factor, sizes = global_sizes(parameter),
                             weak = c10::weak_intrusive_ptr(parameter.getIntrusivePtr())](const Tensor& gradient) {
      EXPECT_EQ(gradient.sizes(), sizes);
      EXPECT_EQ(Tensor(weak.lock()).sizes(), sizes);
      return gradient * factor;
    });
  };
  auto program = program_of<Hollow>(
      [&](Hollow& net, const Role& role) {
        add_hook(net.in->weight, 2.0);
        return train(net, role, loss_of<Hollow>);
      },
      shard_every_child);
  program.build = [&] {
    auto net = std::make_shared<Hollow>();
    for (auto& parameter : net->parameters())
      for (double factor : {0.5, 3.0}) add_hook(parameter, factor);
    return net;
  };
  expect_equals_unsharded(program);
}

TEST(ZooParameters, IgnoredParametersStayWholeAndAreNotReduced) {
  run_thread_ranks(2, [&](int r) {
    const auto net = build_alike([] { return std::make_shared<Hollow>(); });
    auto model = fully_shard(net, {.ignored_params = {net->in->weight}});
    EXPECT_EQ(net->in->weight.sizes(), (std::vector<int64_t>{5, 4}));
    (model(torch::ones({2, 4})).sum() * (r + 1)).backward();
    auto gradient = net->in->weight.grad();
    EXPECT_EQ(gradient.sizes(), (std::vector<int64_t>{5, 4}));
    expect_close(mean_over_ranks(gradient / (r + 1)) * (r + 1), gradient, 5e-6);
    EXPECT_EQ(model.stats().parameter_numel, 5 + 30 + 12);
  });
}

// These operators return a view or a copy, depending on the strides.
TEST(ZooParameters, AnOperatorThatMayCopyBringsTheParameter) {
  run_thread_ranks(2, [&](int) {
    auto linear = build_alike([] { return nn::Linear(nn::LinearOptions(4, 6).bias(false)); });
    const auto whole = linear->weight.detach().clone();
    auto group = fully_shard(*linear);
    for (auto* act :
         {+[](const Tensor& w) { return w.transpose(0, 1).reshape({3, 8}); },
          +[](const Tensor& w) { return w.t().flatten(); }, +[](const Tensor& w) { return w.t().ravel(); }}) {
      ForwardScope scope(group);
      EXPECT_TRUE(torch::equal(act(linear->weight), act(whole)));
      group.reshard();
    }
  });
}

}  // namespace
}  // namespace fsdp::test
