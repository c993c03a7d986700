// What becomes a group: policies, nested groups, lists of modules.

#include <gmock/gmock.h>

#include "api/group_view.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct GroupsNet : nn::Module {
  nn::Conv2d conv1{nn::Conv2dOptions(1, 32, 3)}, conv2{nn::Conv2dOptions(32, 64, 3)};
  nn::Linear fc1{9216, 128}, fc2{128, 10};
  GroupsNet() {
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

Program<GroupsNet> policy_program(AutoWrapPolicy policy,
                                  std::function<std::vector<const nn::Module*>(GroupsNet&)> expected) {
  Program<GroupsNet> program;
  program.build = [] { return std::make_shared<GroupsNet>(); };
  program.shard = [=](GroupsNet& net, const FullyShardOptions& given) {
    auto options = given;
    options.auto_wrap_policy = policy;
    auto model = fully_shard(net, options);
    auto groups = expected(net);
    EXPECT_EQ(model.stats().groups, static_cast<int64_t>(groups.size()) + 1);
    for (const auto& child : net.children())
      EXPECT_EQ(has_own_group(*child), std::find(groups.begin(), groups.end(), child.get()) != groups.end());
  };
  program.run = [](GroupsNet& net, const Role& role) {
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

TEST(ZooGroups, SizeBasedPolicyWrapsOnlyWhatIsLargeEnough) {
  auto fc1_only = [](GroupsNet& net) { return std::vector<const nn::Module*>{net.fc1.get()}; };
  expect_equals_unsharded(policy_program(size_based_auto_wrap_policy(20000), fc1_only), worlds_up_to(3));
}

TEST(ZooGroups, SizeBasedPolicyTakesModulesOfExactlyItsSize) {
  auto conv2_too = [](GroupsNet& net) { return std::vector<const nn::Module*>{net.conv2.get(), net.fc1.get()}; };
  expect_equals_unsharded(policy_program(size_based_auto_wrap_policy(64 * 32 * 9 + 64), conv2_too), {1});
}

TEST(ZooGroups, ModulePolicyWrapsTheTypesItNames) {
  auto linears = [](GroupsNet& net) { return std::vector<const nn::Module*>{net.fc1.get(), net.fc2.get()}; };
  expect_equals_unsharded(policy_program(module_wrap_policy<nn::LinearImpl>(), linears), {1, 2});
}

TEST(ZooGroups, FunctionAsAPolicyDecidesByName) {
  AutoWrapPolicy policy = [](const WrapCandidate& candidate) { return candidate.name.starts_with("conv"); };
  auto convolutions = [](GroupsNet& net) { return std::vector<const nn::Module*>{net.conv1.get(), net.conv2.get()}; };
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
  auto program = regression<Deep>([] { return std::make_shared<Deep>(); },
                                  [](Deep& m, const Batch& batch) { return m.forward(samples(batch, {8})); });
  program.shard = std::move(shard);
  return program;
}

TEST(ZooGroups, SizeBasedPolicyKeepsListsAndAttentionTogether) {
  auto net = std::make_shared<Deep>();
  run_thread_ranks(1, [&](int) {
    FullyShardOptions options;
    options.auto_wrap_policy = size_based_auto_wrap_policy(70);
    auto model = fully_shard(net, options);
    EXPECT_FALSE(has_own_group(*net->blocks));
    EXPECT_FALSE(has_own_group(*net->attention)) << "FSDP1 keeps it with its parent";
    EXPECT_FALSE(has_own_group(*net->attention->out_proj.ptr()));
    EXPECT_TRUE(has_own_group(*net->head));
    EXPECT_EQ(model.stats().groups, 9);
  });
}

TEST(ZooGroups, NestedGroupsEqualTheUnshardedRun) {
  expect_equals_unsharded(deep_program([](Deep& m, const FullyShardOptions& options) {
    for (auto& block : *m.blocks) {
      fully_shard(*block->as<nn::Sequential>()->children()[0], options);
      fully_shard(*block, options);
    }
    fully_shard(*m.blocks, options);  // nothing left for it
    fully_shard(static_cast<nn::Module&>(m), options);
  }));
}

TEST(ZooGroups, ListOfModulesIsOneGroup) {
  auto program = deep_program([](Deep& m, const FullyShardOptions& options) {
    auto tail = fully_shard(std::vector<nn::Module*>{m.norm.get(), m.head.get()}, options);
    EXPECT_EQ(tail.stats().groups, 1);
    EXPECT_EQ(tail.stats().parameter_numel, 2 * 72);
    auto model = fully_shard(m, options);
    EXPECT_EQ(model.stats().groups, 2);
    EXPECT_EQ(param_groups(group_of(*m.norm)).front(), param_groups(group_of(*m.head)).front());
  });
  expect_equals_unsharded(program);
}

TEST(ZooGroups, TwoListsOfModulesAreTwoGroups) {
  auto program = deep_program([](Deep& m, const FullyShardOptions& options) {
    std::vector<nn::Module*> blocks{m.blocks[0].get(), m.blocks[2].get()}, tail{m.norm.get(), m.head.get()};
    EXPECT_EQ(fully_shard(blocks, options).stats().parameter_numel, 4 * 72);
    EXPECT_EQ(fully_shard(tail, options).stats().parameter_numel, 2 * 72);
    EXPECT_EQ(fully_shard(m, options).stats().groups, 3);
  });
  expect_equals_unsharded(program);
}

TEST(ZooGroups, GroupWithoutParametersIsFoundAgainWhileThoseBelowItLive) {
  auto net = std::make_shared<Deep>();
  run_thread_ranks(1, [&](int) {
    for (const auto& child : net->children()) fully_shard(*child);
    fully_shard(static_cast<nn::Module&>(*net));
    EXPECT_EQ(group_of(*net).stats().groups, 5);
  });
}

TEST(ZooGroups, PrintingNamesGroupsAndShards) {
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

struct LinkImpl : nn::Module {
  torch::Tensor weight = register_parameter("w", torch::full({4}, 1.001, torch::kDouble));
};

// A chain of modules, each inside the one before it.
struct ChainImpl : nn::Module {
  explicit ChainImpl(int depth) {
    nn::Module* outer = this;
    for (int i = 0; i < depth; ++i) {
      links.push_back(std::make_shared<LinkImpl>());
      outer->register_module("u", links.back());
      outer = links.back().get();
    }
  }
  // One by one: a chain of modules would end by as many calls inside one another.
  ~ChainImpl() override {
    for (auto& link : links)
      if (!link->children().empty()) link->unregister_module("u");
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& link : links) x = x * link->weight;
    return x.sum();
  }
  std::vector<std::shared_ptr<LinkImpl>> links;
};
TORCH_MODULE(Chain);

// What sharding or a step did more than once for each pair, let alone triple, of groups would outlast the time limit.
TEST(ZooGroups, AChainOfAThousandNestedGroupsIsShardedAndTrains) {
  constexpr int kDepth = 1000;
  Chain unsharded(kDepth);
  const auto x = torch::arange(1, 5, torch::kDouble);
  unsharded->forward(x).backward();
  run_thread_ranks(2, [&](int) {
    Chain chain(kDepth);
    FullyShardOptions options;
    options.auto_wrap_policy = module_wrap_policy<LinkImpl>();
    auto model = fully_shard(chain, options);
    EXPECT_EQ(model.stats().groups, kDepth + 1);
    EXPECT_EQ(group_of(*chain->links[1]).name(), "u.u");
    EXPECT_THAT(group_of(*chain->links.back()).name(),
                testing::AllOf(testing::StartsWith("..."), testing::EndsWith("u.u")));
    auto optimizer = sgd(chain->parameters());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      model(x).backward();
      if (step > 0) continue;
      for (int i : {0, kDepth / 2, kDepth - 1})
        EXPECT_LT(relative_difference(unsharded->links[i]->weight.grad(), full_grad(chain->links[i]->weight)), 1e-10);
      optimizer.step();
    }
  });
}

TEST(ZooGroups, AModuleThatIsNestedDeeperThanTheStackAllowsIsAskedAboutOnceAndShown) {
  constexpr int kDepth = 50'000;
  run_thread_ranks(1, [&](int) {
    Chain chain(kDepth);
    int asked = 0;
    FullyShardOptions options;
    options.auto_wrap_policy = [&](const WrapCandidate&) {
      ++asked;
      return false;
    };
    auto model = fully_shard(chain, options);
    EXPECT_EQ(asked, kDepth);
    EXPECT_EQ(model.stats().groups, 1);
    const ForwardScope scope(model);
    EXPECT_EQ(chain->links.back()->weight.numel(), 4);
  });
}

TEST(ZooGroups, NestedGroupsShardedInsideOutHaveTheirNamesInTheOutermostModel) {
  run_thread_ranks(2, [&](int) {
    Chain chain(40);
    for (auto link = chain->links.rbegin(); link != chain->links.rend(); ++link) fully_shard(**link);
    auto model = fully_shard(chain);
    EXPECT_EQ(model.stats().groups, 41);
    EXPECT_EQ(group_of(*chain->links[2]).name(), "u.u.u");
    EXPECT_THAT([&] { chain->links[2]->weight.sum(); },
                testing::ThrowsMessage<UsageError>(testing::HasSubstr("'u.u.u.w'")));
  });
}

}  // namespace
}  // namespace fsdp::test
