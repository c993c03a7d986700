// Tests of what becomes a param group: policies, nested groups, lists of modules.

#include "api/group_view.h"
#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

struct GroupsNet : nn::Module {
  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(1, 4, 3)),
             conv2 = register_module("conv2", nn::Conv2d(4, 8, 3));
  nn::Linear fc1 = register_module("fc1", nn::Linear(72, 16)), fc2 = register_module("fc2", nn::Linear(16, 10));
  Tensor forward(const Tensor& x) {
    auto h = torch::max_pool2d(torch::relu(conv2->forward(torch::relu(conv1->forward(x)))), 2).flatten(1);
    return torch::log_softmax(fc2->forward(torch::relu(fc1->forward(h))), 1);
  }
};

// Blocks in a list, each with its own layers.
struct Deep : nn::Module {
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  nn::MultiheadAttention attention = register_module("attention", nn::MultiheadAttention(8, 2));
  nn::Linear norm = register_module("norm", nn::Linear(8, 8)), head = register_module("head", nn::Linear(8, 8));
  Deep() {
    for (int i = 0; i < 3; ++i) blocks->push_back(nn::Sequential(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8)));
  }
  Tensor forward(Tensor x) {
    for (auto& block : *blocks) x = x + block->as<nn::Sequential>()->forward(x);
    auto rows = x.unsqueeze(0);  // a sequence of one element per sample
    return head->forward(norm->forward(std::get<0>(attention->forward(rows, rows, rows)).squeeze(0)));
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

struct PolicyCase {
  AutoWrapPolicy policy;
  std::vector<std::string> names;  // names of the modules that the policy makes groups
};

// Runs on one rank, because the policy decides the same on several ranks.
template <class M>
void expect_groups_by(const std::vector<PolicyCase>& cases) {
  run_thread_ranks(1, [&](int) {
    for (const auto& [policy, names] : cases) {
      auto net = std::make_shared<M>();
      const Group group = fully_shard(static_cast<nn::Module&>(*net), {.auto_wrap_policy = policy});
      std::vector<std::string> found;
      for (const auto& module : net->named_modules({}, /*include_self=*/false))
        if (has_own_group(*module.value())) found.push_back(module.key());
      EXPECT_EQ(found, names);
      EXPECT_EQ(group.stats().groups, static_cast<int64_t>(names.size()) + 1);
    }
  });
}

TEST(ZooGroups, PoliciesWrapBySizeTypeAndName) {
  const auto by_name = [](const WrapCandidate& candidate) { return candidate.name.starts_with("conv"); };
  expect_groups_by<GroupsNet>({{size_based_auto_wrap_policy(500), {"fc1"}},
                               {size_based_auto_wrap_policy(8 * 4 * 9 + 8), {"conv2", "fc1"}},  // exactly its size
                               {module_wrap_policy<nn::LinearImpl>(), {"fc1", "fc2"}},
                               {by_name, {"conv1", "conv2"}}});
  // As in FSDP1, module lists and attention modules stay with the modules around them.
  expect_groups_by<Deep>(
      {{size_based_auto_wrap_policy(70),
        {"blocks.0.0", "blocks.0.2", "blocks.1.0", "blocks.1.2", "blocks.2.0", "blocks.2.2", "norm", "head"}}});
}

TEST(ZooGroups, OfASizeBasedPolicyEqualTheUnshardedRun) {
  expect_same_sharded<GroupsNet>(fitting<GroupsNet>([](GroupsNet& m, const Batch& batch) {
                                   return torch::nll_loss(m.forward(samples(batch, {1, 10, 10})),
                                                          labels(batch, {1}, 10).squeeze(1));
                                 }),
                                 [&](nn::Module& net, FullyShardOptions options) {
                                   options.auto_wrap_policy = size_based_auto_wrap_policy(500);
                                   fully_shard(net, options);
                                 });
}

void expect_same_deep(const std::function<void(Deep&, const FullyShardOptions&)>& shard) {
  expect_same_sharded<Deep>(
      fitting<Deep>(
          [](Deep& m, const Batch& batch) { return distance_from_targets(m.forward(samples(batch, {8})), batch); }),
      [&](nn::Module& net, const FullyShardOptions& options) { shard(dynamic_cast<Deep&>(net), options); });
}

TEST(ZooGroups, NestedGroupsEqualTheUnshardedRun) {
  expect_same_deep([](Deep& m, const FullyShardOptions& options) {
    for (auto& block : *m.blocks) {
      fully_shard(*block->as<nn::Sequential>()->children()[0], options);
      fully_shard(*block, options);
    }
    fully_shard(*m.blocks, options);  // nothing is left for this group
    fully_shard(static_cast<nn::Module&>(m), options);
  });
}

TEST(ZooGroups, EachListOfModulesIsOneGroup) {
  expect_same_deep([](Deep& m, const FullyShardOptions& options) {
    std::vector<nn::Module*> blocks{m.blocks[0].get(), m.blocks[2].get()}, tail{m.norm.get(), m.head.get()};
    EXPECT_EQ(fully_shard(blocks, options).stats().parameter_numel, 4 * 72);
    EXPECT_EQ(fully_shard(tail, options).stats().parameter_numel, 2 * 72);
    EXPECT_EQ(fully_shard(m, options).stats().groups, 3);
    EXPECT_EQ(param_groups(group_of(*m.norm)).front(), param_groups(group_of(*m.head)).front());
  });
}

TEST(ZooGroups, GroupWithoutParametersIsFoundAgainWhileThoseBelowItLiveAndPrintsThem) {
  auto net = std::make_shared<Deep>();
  run_thread_ranks(1, [&](int) {
    for (const auto& child : net->children()) fully_shard(*child);
    fully_shard(static_cast<nn::Module&>(*net));
    EXPECT_THAT(c10::str(group_of(*net)),
                testing::AllOf(testing::HasSubstr("5 groups"), testing::HasSubstr("in_proj_weight [24, 8]"),
                               testing::HasSubstr("group 'attention'")));
  });
}

struct LinkImpl : nn::Module {
  Tensor weight = register_parameter("w", torch::full({4}, 1.001, torch::kDouble));
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
  // Unlinks the modules one by one; otherwise the chain's destructors would nest as deeply as the chain.
  ~ChainImpl() override {
    for (auto& link : links)
      if (!link->children().empty()) link->unregister_module("u");
  }
  Tensor forward(Tensor x) {
    for (const auto& link : links) x = x * link->weight;
    return x.sum();
  }
  std::vector<std::shared_ptr<LinkImpl>> links;
};
TORCH_MODULE(Chain);

// No model nests its groups so deeply. Sharding and steps walk from groups to the groups around them, which takes time
// that grows with the cube of the depth.
TEST(ZooGroups, AChainOfTwoHundredNestedGroupsIsShardedAndTrains) {
  constexpr int kDepth = 200;
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
    EXPECT_EQ(std::ssize(group_of(*chain->links.back()).name()), 2 * kDepth - 1);
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

TEST(ZooGroups, EachOfAThousandNestedModulesIsAskedAboutOnceAndShown) {
  constexpr int kDepth = 1000;
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
    Chain chain(4);
    for (auto link = chain->links.rbegin(); link != chain->links.rend(); ++link) fully_shard(**link);
    auto model = fully_shard(chain);
    EXPECT_EQ(model.stats().groups, 5);
    EXPECT_EQ(group_of(*chain->links[2]).name(), "u.u.u");
    EXPECT_THAT([&] { chain->links[2]->weight.sum(); },
                testing::ThrowsMessage<UsageError>(testing::HasSubstr("'u.u.u.w'")));
  });
}

}  // namespace
}  // namespace fsdp::test
