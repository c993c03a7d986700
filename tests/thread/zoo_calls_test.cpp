// Calls through the handle, with any arguments and results, and everything that can be given to fully_shard.

#include <gmock/gmock.h>

#include <map>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct Prediction {
  torch::Tensor mean, spread;
  std::string note;
};

struct Query {
  std::vector<torch::Tensor> parts;
  double scale = 1.0;
};

struct AnyCallImpl : nn::Module {
  nn::Linear a{4, 3}, b{4, 3};
  AnyCallImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y, int64_t repeats = 1, bool swap = false) {
    auto sum = swap ? b->forward(x) + a->forward(y) : a->forward(x) + b->forward(y);
    return sum * static_cast<double>(repeats);
  }
  Prediction forward(const Query& query, const std::string& note) {
    return {a->forward(query.parts.at(0)) * query.scale, torch::softmax(b->forward(query.parts.at(1)), 1), note};
  }
  std::tuple<torch::Tensor, int, torch::Tensor> forward(std::pair<torch::Tensor, torch::Tensor> x) {
    return {a->forward(x.first), 7, b->forward(x.second)};
  }
  std::vector<std::map<std::string, torch::Tensor>> forward(std::initializer_list<torch::Tensor> xs) {
    std::vector<std::map<std::string, torch::Tensor>> results;
    for (const auto& x : xs) results.push_back({{"a", a->forward(x)}, {"b", b->forward(x)}});
    return results;
  }
  void forward(const torch::Tensor& x, torch::Tensor* out) { *out = a->forward(x); }
  std::unique_ptr<torch::Tensor> forward(std::unique_ptr<torch::Tensor> x) {
    return std::make_unique<torch::Tensor>(b->forward(*x));
  }
  const torch::Tensor& forward() { return last = a->weight.sum() + b->weight.sum(); }
  torch::Tensor last;
};
TORCH_MODULE(AnyCall);

// Everything above, called through `call`, added up.
template <class Call>
torch::Tensor loss_of_all_calls(Call&& call, const Batch& batch) {
  auto x = samples(batch, {4}), y = samples({batch.step + 9, batch.first, batch.count}, {4});
  auto loss = call(x, y).mean() + call(x, y, 3, true).pow(2).mean();
  Prediction prediction = call(Query{{x, y}, 0.5}, "noted");
  EXPECT_EQ(prediction.note, "noted");
  loss = loss + (prediction.mean * prediction.spread).mean();
  auto [first, seven, second] = call(std::make_pair(x, y));
  EXPECT_EQ(seven, 7);
  loss = loss + (first * second).mean();
  for (auto& result : call(std::initializer_list<torch::Tensor>{x, y})) loss = loss + (result["a"] * result["b"]).mean();
  torch::Tensor out;
  call(x, &out);
  loss = loss + out.pow(3).mean();
  loss = loss + call(std::make_unique<torch::Tensor>(y))->cos().mean();
  const torch::Tensor& last = call();
  return loss + last * 0.1;
}

TEST(ZooCalls, AnyArgumentsAndResultsThroughTheHandleEqualTheUnshardedRun) {
  Program<AnyCallImpl> program;
  program.build = [] { return std::make_shared<AnyCallImpl>(); };
  program.shard = [](AnyCallImpl& net, const FullyShardOptions& options) { fully_shard(*net.a, options); };
  program.run = [](AnyCallImpl& net, const Role& role) {
    std::optional<Sharded<AnyCallImpl&>> model;
    if (role.is_sharded()) model.emplace(fully_shard(net));
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto plain = [&](auto&&... args) -> decltype(auto) { return net.forward(std::forward<decltype(args)>(args)...); };
      auto loss = model ? loss_of_all_calls(*model, role.batch(step)) : loss_of_all_calls(plain, role.batch(step));
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  };
  expect_equals_unsharded(program);
}

// One step of the model made by `shard`; returns the loss, which must not depend on how the model is held.
template <class Shard>
void expect_call_equals(const torch::Tensor& expected, const Shard& shard) {
  for (int world : worlds_up_to(2)) {
    std::vector<AnyCall> nets;
    for (int r = 0; r < world; ++r) {
      torch::manual_seed(5);
      nets.emplace_back();
    }
    run_thread_ranks(world, [&](int r) {
      auto& mine = nets[static_cast<size_t>(r)];
      auto model = shard(mine);
      auto x = samples({0, 0, 2}, {4}, torch::kFloat);
      auto output = model(x, x);
      expect_close(expected, output, 1e-5);
      output.sum().backward();
      EXPECT_EQ(model->parameters().size(), 4U);
      EXPECT_EQ(model.parameters().size(), 4U);
      for (const auto& parameter : model.parameters()) EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
    });
  }
}

TEST(ZooCalls, HoldersSharedPointersAndConcreteModulesGiveTheSameHandle) {
  torch::manual_seed(5);
  AnyCall net;
  auto x = samples({0, 0, 2}, {4}, torch::kFloat);
  auto expected = net->forward(x, x).detach();
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(m); });
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(m.ptr()); });
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(*m); });
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(nn::ModuleHolder<AnyCallImpl>(m.ptr())); });
}

TEST(ZooCalls, HandlesAreCheapAndShared) {
  AnyCall net;
  run_thread_ranks(1, [&](int) {
    auto model = fully_shard(net);
    Sharded<AnyCall> copy = model;
    Group group = copy;
    EXPECT_EQ(model.module().ptr(), net.ptr());
    copy(torch::ones({2, 4}), torch::ones({2, 4})).sum().backward();
    EXPECT_EQ(group.stats().gathers, model.stats().gathers);
    EXPECT_EQ(group_of(*net).param_groups(), model.param_groups());
    EXPECT_THROW(group_of(*net->a), UsageError);
  });
}

struct Net : nn::Module {
  nn::Conv2d conv1{nn::Conv2dOptions(1, 32, 3)}, conv2{nn::Conv2dOptions(32, 64, 3)};
  nn::Linear fc1{9216, 128}, fc2{128, 10};
  Net() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::max_pool2d(torch::relu(conv2->forward(torch::relu(conv1->forward(x)))), 2).flatten(1);
    return torch::log_softmax(fc2->forward(torch::relu(fc1->forward(h))), 1);
  }
};

bool has_own_group(const nn::Module& module) {
  try {
    static_cast<void>(group_of(module));
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

Program<Net> policy_program(AutoWrapPolicy policy, std::function<std::vector<const nn::Module*>(Net&)> expected) {
  Program<Net> program;
  program.build = [] { return std::make_shared<Net>(); };
  program.shard = [=](Net& net, const FullyShardOptions& given) {
    auto options = given;
    options.auto_wrap_policy = policy;
    auto model = fully_shard(net, options);
    auto groups = expected(net);
    EXPECT_EQ(model.stats().groups, static_cast<int64_t>(groups.size()) + 1);
    for (const auto& child : net.children())
      EXPECT_EQ(has_own_group(*child), std::find(groups.begin(), groups.end(), child.get()) != groups.end());
  };
  program.run = [](Net& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    optimizer.zero_grad();
    auto batch = role.batch(0);
    auto loss = role.whole(net, [&] {
      return torch::nll_loss(net.forward(samples(batch, {1, 28, 28})), labels(batch, {1}, 10).squeeze(1));
    });
    loss.backward();
    optimizer.step();
    return Values{loss};
  };
  program.samples_per_rank = 1;
  return program;
}

TEST(ZooCalls, SizeBasedPolicyWrapsOnlyWhatIsLargeEnough) {
  auto fc1_only = [](Net& net) { return std::vector<const nn::Module*>{net.fc1.get()}; };
  expect_equals_unsharded(policy_program(size_based_auto_wrap_policy(20000), fc1_only), worlds_up_to(3));
}

TEST(ZooCalls, SizeBasedPolicyTakesModulesOfExactlyItsSize) {
  auto conv2_too = [](Net& net) { return std::vector<const nn::Module*>{net.conv2.get(), net.fc1.get()}; };
  expect_equals_unsharded(policy_program(size_based_auto_wrap_policy(64 * 32 * 9 + 64), conv2_too), {1});
}

TEST(ZooCalls, ModulePolicyWrapsTheTypesItNames) {
  auto linears = [](Net& net) { return std::vector<const nn::Module*>{net.fc1.get(), net.fc2.get()}; };
  expect_equals_unsharded(policy_program(module_wrap_policy<nn::LinearImpl>(), linears), {1, 2});
}

TEST(ZooCalls, FunctionAsAPolicyDecidesByName) {
  AutoWrapPolicy policy = [](const WrapCandidate& candidate) { return candidate.name.starts_with("conv"); };
  auto convolutions = [](Net& net) { return std::vector<const nn::Module*>{net.conv1.get(), net.conv2.get()}; };
  expect_equals_unsharded(policy_program(policy, convolutions), {2});
}

// Blocks in a list, each with layers of its own.
struct Deep : nn::Module {
  nn::ModuleList blocks;
  nn::MultiheadAttention attention{nn::MultiheadAttentionOptions(8, 2)};
  nn::Linear norm{8, 8}, head{8, 8};
  Deep() {
    for (int i = 0; i < 3; ++i) blocks->push_back(nn::Sequential(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8)));
    register_module("blocks", blocks);
    register_module("attention", attention);
    register_module("norm", norm);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : *blocks) x = x + block->as<nn::Sequential>()->forward(x);
    auto rows = x.unsqueeze(0);  // a sequence of one per sample
    return head->forward(norm->forward(std::get<0>(attention->forward(rows, rows, rows)).squeeze(0)));
  }
};

Program<Deep> deep_program(std::function<void(Deep&, const FullyShardOptions&)> shard) {
  auto program = regression<Deep>([] { return std::make_shared<Deep>(); }, [](Deep& m, const Batch& batch) {
    return m.forward(samples(batch, {8}));
  });
  program.shard = std::move(shard);
  return program;
}

TEST(ZooCalls, SizeBasedPolicyKeepsListsAndAttentionTogether) {
  auto net = std::make_shared<Deep>();
  run_thread_ranks(1, [&](int) {
    FullyShardOptions options;
    options.auto_wrap_policy = size_based_auto_wrap_policy(70);
    auto model = fully_shard(net, options);
    EXPECT_FALSE(has_own_group(*net->blocks));
    EXPECT_TRUE(has_own_group(*net->attention));
    EXPECT_FALSE(has_own_group(*net->attention->out_proj.ptr()));
    EXPECT_TRUE(has_own_group(*net->head));
    EXPECT_EQ(model.stats().groups, 10);
  });
}

TEST(ZooCalls, NestedGroupsEqualTheUnshardedRun) {
  expect_equals_unsharded(deep_program([](Deep& m, const FullyShardOptions& options) {
    for (auto& block : *m.blocks) {
      fully_shard(*block->as<nn::Sequential>()->children()[0], options);
      fully_shard(*block, options);
    }
    fully_shard(*m.blocks, options);  // nothing left for it
    fully_shard(static_cast<nn::Module&>(m), options);
  }));
}

TEST(ZooCalls, ListOfModulesIsOneGroup) {
  auto program = deep_program([](Deep& m, const FullyShardOptions& options) {
    auto tail = fully_shard(std::vector<nn::Module*>{m.norm.get(), m.head.get()}, options);
    EXPECT_EQ(tail.stats().groups, 1);
    EXPECT_EQ(tail.stats().parameter_numel, 2 * 72);
    auto model = fully_shard(m, options);
    EXPECT_EQ(model.stats().groups, 2);
    EXPECT_EQ(group_of(*m.norm).param_groups().front(), group_of(*m.head).param_groups().front());
  });
  expect_equals_unsharded(program);
}

TEST(ZooCalls, GroupWithoutParametersIsFoundAgainWhileThoseBelowItLive) {
  auto net = std::make_shared<Deep>();
  run_thread_ranks(1, [&](int) {
    for (const auto& child : net->children()) fully_shard(*child);
    fully_shard(static_cast<nn::Module&>(*net));
    EXPECT_EQ(group_of(*net).stats().groups, 5);
  });
}

TEST(ZooCalls, PrintingNamesGroupsAndShards) {
  auto net = std::make_shared<Deep>();
  run_thread_ranks(1, [&](int) {
    fully_shard(*net->attention);
    auto model = fully_shard(net);
    std::ostringstream out;
    out << model;
    EXPECT_THAT(out.str(), testing::AllOf(testing::HasSubstr("2 groups"), testing::HasSubstr("in_proj_weight [24, 8]"),
                                          testing::HasSubstr("group 'attention'")));
  });
}

}  // namespace
}  // namespace fsdp::test
