// What fully_shard refuses, before it communicates: on every rank alike, and the modules stay as they were.

#include <torch/csrc/autograd/variable.h>
#include <torch/script.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <optional>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

/// A module with the parameters that the test gives it.
struct BagImpl : nn::Module {
  torch::Tensor add(const std::string& name, torch::Tensor tensor, bool requires_grad = true) {
    return register_parameter(name, std::move(tensor), requires_grad);
  }
};
TORCH_MODULE(Bag);

// Runs on 2 ranks and expects that sharding the bag is refused with a message that names the rank and has `parts`.
void expect_refused(const std::function<void(BagImpl&)>& fill, const std::vector<std::string>& parts,
                    const FullyShardOptions& options = {}) {
  run_thread_ranks(2, [&](int r) {
    auto bag = std::make_shared<BagImpl>();
    bag->add("good", torch::ones({4, 2}));
    fill(*bag);
    auto message = message_of([&] { fully_shard(*bag, options); });
    EXPECT_THAT(message, HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: ")));
    for (const auto& part : parts) EXPECT_THAT(message, HasSubstr(part));
    EXPECT_EQ(bag->named_parameters()["good"].sizes(), torch::IntArrayRef({4, 2})) << "it was not sharded";
    barrier();
  });
}

TEST(FullyShard, TwiceOnAModuleIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto again = AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] fully_shard: ")), HasSubstr("sharded before"),
                       HasSubstr("fsdp::group_of"));
    EXPECT_THAT(message_of([&] { fully_shard(*t.net.up); }), again);
    EXPECT_THAT(message_of([&] { fully_shard(static_cast<nn::Module&>(t.net)); }), again);
    EXPECT_THAT(message_of([&] { fully_shard({t.net.up.get()}); }), again);
    EXPECT_THAT(message_of([&] { fully_shard({t.net.norm.get(), t.net.down.get()}); }), again);
  });
}

// No parameters but those of its layer, so its own group has none.
struct AroundALayer : nn::Module {
  nn::Linear layer = register_module("layer", nn::Linear(4, 4));
};

TEST(FullyShard, OfAModelWhereOneWasWhoseGraphLivesOn) {
  run_thread_ranks(2, [](int) {
    alignas(AroundALayer) std::array<std::byte, sizeof(AroundALayer)> place;
    torch::Tensor y;
    for (int round = 0; round < 3; ++round) {
      const auto model = build_alike([&] {
        return std::shared_ptr<AroundALayer>(new (place.data()) AroundALayer,
                                             [](AroundALayer* gone) { gone->~AroundALayer(); });
      });
      fully_shard(*model->layer);
      auto group = fully_shard(*model);
      ForwardScope scope(group);
      y = model->layer->forward(torch::ones({1, 4})).sum();
      EXPECT_TRUE(y.requires_grad());
    }
  });
}

TEST(FullyShard, OfABlockAfterTheModelAroundItIsRefused) {
  run_thread_ranks(2, [](int) {
    auto model = build_alike([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)); });
    auto sharded = fully_shard(model);
    EXPECT_THAT(message_of([&] { fully_shard(*model->ptr(0)); }),
                AllOf(HasSubstr("all parameters of"), HasSubstr("are in the group"),
                      HasSubstr("Shard the inner modules first")));
    EXPECT_EQ(sharded(torch::ones({1, 4})).sizes(), torch::IntArrayRef({1, 4}));
  });
}

TEST(FullyShard, OfAModuleWhoseOnlyChildStandsInAnotherShardedOneWorks) {
  run_thread_ranks(2, [](int) {
    auto child = build_alike([] { return nn::Linear(4, 4); });
    nn::Sequential one(child), other(child);
    nn::ModuleList model(one, other);
    fully_shard(one);
    fully_shard(other);
    {
      ForwardScope scope(fully_shard(model));
      other->forward(one->forward(torch::ones({1, 4}))).sum().backward();
    }
    EXPECT_EQ(full_grad(child->weight).sizes(), torch::IntArrayRef({4, 4}));
  });
}

TEST(FullyShard, AfterABackwardIsRefused) {
  expect_refused([](BagImpl& bag) { bag.add("used", torch::ones({3, 2})).sum().backward(); },
                 {"parameter 'used'", "already has a gradient", "zero_grad()"});
}

TEST(FullyShard, InsideABackwardIsRefused) {
  run_thread_ranks(2, [](int) {
    nn::Linear linear(3, 2);
    auto x = torch::ones({2}, torch::requires_grad());
    std::string message;
    x.register_hook([&](const torch::Tensor&) { message = message_of([&] { fully_shard(linear); }); });
    (x * 2).sum().backward();
    EXPECT_THAT(message, AllOf(HasSubstr("inside a backward"), HasSubstr("before training")));
    EXPECT_EQ(linear->weight.size(0), 2);
  });
}

TEST(FullyShard, WhileAGraphIsAliveIsRefused) {
  torch::Tensor graph;
  std::mutex mutex;
  expect_refused(
      [&](BagImpl& bag) {
        auto sum = bag.add("used", torch::ones({3, 2})).sum();
        std::lock_guard lock(mutex);
        graph = graph.defined() ? graph + sum : sum;
      },
      {"parameter 'used'", "part of a graph", "let the loss and outputs go"});
}

TEST(FullyShard, WorksAfterTheGraphIsGone) {
  run_thread_ranks(2, [](int) {
    auto linear = build_alike([] { return nn::Linear(3, 4); });
    linear(torch::ones({1, 3})).sum().backward();
    linear->zero_grad();
    EXPECT_EQ(fully_shard(linear).stats().parameter_numel, 16);
  });
}

TEST(FullyShard, InInferenceModeIsRefused) {
  run_thread_ranks(2, [](int r) {
    nn::Linear linear(3, 2);
    c10::InferenceMode inference;
    EXPECT_THAT(message_of([&] { fully_shard(linear); }),
                AllOf(HasSubstr(c10::str("rank ", r)), HasSubstr("outside of c10::InferenceMode")));
  });
}

TEST(FullyShard, OfAModuleMadeInInferenceModeIsRefused) {
  run_thread_ranks(2, [](int) {
    std::shared_ptr<nn::LinearImpl> linear;
    {
      c10::InferenceMode inference;
      linear = std::make_shared<nn::LinearImpl>(3, 2);
    }
    EXPECT_THAT(message_of([&] { fully_shard(linear); }),
                AllOf(HasSubstr("parameter 'weight'"), HasSubstr("inference mode")));
  });
}

TEST(FullyShard, OfRowsThatAreNotDenseIsRefused) {
  const std::vector<std::string> parts{"parameter 'bad'", "not dense", "sizes [", "strides [", "contiguous()"};
  expect_refused([](BagImpl& bag) { bag.add("bad", torch::ones({3, 5}).t()); }, parts);
  expect_refused([](BagImpl& bag) { bag.add("bad", torch::ones({6, 5}).slice(1, 0, 3)); }, parts);
  expect_refused([](BagImpl& bag) { bag.add("bad", torch::ones({6, 5}).slice(0, 0, 6, 2)); }, parts);
  expect_refused([](BagImpl& bag) { bag.add("bad", torch::ones({1, 5}).expand({4, 5})); }, parts);
}

TEST(FullyShard, OfParametersOnTheSameMemoryIsRefused) {
  const std::vector<std::string> parts{"'first'", "'second'", "the same memory", "a->weight = b->weight"};
  expect_refused(
      [](BagImpl& bag) {
        auto all = torch::ones({6, 3});
        bag.add("first", all.slice(0, 0, 4).detach());
        bag.add("second", all.slice(0, 2, 6).detach());
      },
      parts);
  expect_refused(
      [](BagImpl& bag) {
        auto first = bag.add("first", torch::ones({6, 3}));
        bag.add("second", first.detach());
      },
      parts);
}

TEST(FullyShard, OfParametersThatAreNoLeavesIsRefused) {
  expect_refused(
      [](BagImpl& bag) {
        auto leaf = torch::ones({3, 2}, torch::requires_grad());
        bag.add("made", leaf * 2);
      },
      {"parameter 'made'", "not a leaf", "MulBackward", "requires_grad_()"});
}

TEST(FullyShard, OfSparseParametersIsRefused) {
  expect_refused([](BagImpl& bag) { bag.add("few", torch::ones({3, 2}).to_sparse()); },
                 {"parameter 'few'", "layout Sparse", "expected a strided tensor", "dense"});
}

TEST(FullyShard, OfQuantisedAndNestedParametersIsRefused) {
  expect_refused(
      [](BagImpl& bag) {
        auto coarse = at::_empty_affine_quantized({3, 2}, torch::dtype(torch::kQInt8), 0.1, 0);
        bag.add("coarse", coarse, false);
      },
      {"parameter 'coarse'", "is quantised", "expected a plain tensor", "ignored_params"});
  expect_refused(
      [](BagImpl& bag) {
        bag.add("ragged", at::_nested_tensor_from_tensor_list({torch::ones({2, 3}), torch::ones({4, 3})}), false);
      },
      {"parameter 'ragged'", "is nested", "expected a plain tensor", "ignored_params"});
}

TEST(FullyShard, WhileSomebodyKeepsAnAccumulatorIsRefused) {
  std::vector<decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()))> kept(2);
  expect_refused(
      [&](BagImpl& bag) {
        kept[static_cast<size_t>(rank())] =
            torch::autograd::impl::grad_accumulator(bag.add("kept", torch::ones({3, 2})));
      },
      {"parameter 'kept'", "torch::autograd::impl::grad_accumulator gave its node to somebody", "and that node"});
}

TEST(FullyShard, OfAParameterWithAHookInThePlaceOfItsOwnIsRefused) {
  struct Hook : torch::autograd::PostAccumulateGradHook {
    void operator()(const torch::Tensor&) override {}
  };
  expect_refused(
      [](BagImpl& bag) {
        torch::autograd::impl::set_post_acc_grad_hooks(bag.add("hooked", torch::ones({3, 2})),
                                                       std::make_unique<Hook>());
      },
      {"parameter 'hooked'", "set_post_acc_grad_hooks", "register_hook"});
}

TEST(FullyShard, OfParametersThatTrainInADtypeWithoutSumsIsRefused) {
  expect_refused([](BagImpl& bag) { bag.add("tiny", torch::ones({3, 2}).to(torch::kFloat8_e4m3fn)); },
                 {"parameter 'tiny'", "Float8_e4m3fn", "expected Half, BFloat16, Float or Double", "Freeze it"});
}

TEST(FullyShard, OfComplexParametersThatTrainIsRefused) {
  expect_refused([](BagImpl& bag) { bag.add("phase", torch::ones({3, 2}, torch::kComplexFloat)); },
                 {"parameter 'phase'", "ComplexFloat", "expected a floating point type", "ignored_params"});
}

TEST(FullyShard, OfANullPointerIsRefused) {
  const auto expected = AllOf(HasSubstr("fsdp::fully_shard"), HasSubstr("null pointer"));
  EXPECT_THAT(message_of([] { fully_shard(std::shared_ptr<nn::LinearImpl>()); }), expected);
  EXPECT_THAT(message_of([] { fully_shard(std::vector<nn::Module*>{nullptr}); }), expected);
  EXPECT_THAT(message_of<c10::Error>([] { fully_shard(nn::Linear(nullptr)); }), HasSubstr("empty ModuleHolder"));
}

// Scopes, orders and what is in memory are kept for each process group.
TEST(FullyShard, OverTwoProcessGroupsInOneTreeIsRefused) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  run_thread_ranks(2, [&](int r) {
    FullyShardOptions other;
    other.process_group = make_thread_rank(store, r, 2, {});
    auto [inner, outer] = build_alike([] { return std::pair(nn::Linear(2, 2), nn::Linear(2, 2)); });
    auto inner_group = fully_shard(*inner, other);
    nn::Sequential both(inner, outer);
    auto expected = AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: ")), HasSubstr("'Linear'"),
                          HasSubstr("another process group"), HasSubstr("FullyShardOptions::process_group"));
    EXPECT_THAT(message_of([&] { fully_shard(both); }), expected);
    nn::Linear tied(2, 2);
    tied->register_parameter("tied", inner->weight);
    EXPECT_THAT(message_of([&] { fully_shard(tied); }), expected);

    auto group = fully_shard(*outer);
    EXPECT_THAT(message_of([&] { group.set_modules_to_forward_prefetch({inner_group}); }),
                AllOf(HasSubstr("set_modules_to_forward_prefetch"), HasSubstr("found 'Linear' over another")));
    EXPECT_THAT(message_of([&] { group.set_modules_to_backward_prefetch({inner_group}); }),
                HasSubstr("set_modules_to_backward_prefetch"));
    barrier();
  });
}

TEST(FullyShard, IgnoresUnusualParametersWhenTold) {
  run_thread_ranks(2, [](int) {
    Bag bag;
    bag->add("good", torch::ones({4, 2}));
    FullyShardOptions options;
    options.ignored_params = {bag->add("few", torch::ones({3, 2}).to_sparse(), false),
                              bag->add("empty", torch::ones({3, 2}, torch::kMeta)),
                              bag->add("turned", torch::ones({3, 2}).t())};
    EXPECT_EQ(fully_shard(bag, options).stats().parameter_numel, 8);
    EXPECT_THAT(c10::str(group_of(*bag)), HasSubstr("few [3, 2] not sharded"));
    EXPECT_EQ(group_of(*bag).stats().parameter_numel, 8);
  });
}

TEST(FullyShard, OfAFrozenScriptModuleIsRefused) {
  run_thread_ranks(2, [](int r) {
    torch::jit::Module module("Scale");
    module.register_parameter("weight", torch::ones({4, 2}), false);
    module.register_attribute("training", c10::BoolType::get(), false);
    module.define("def forward(self, x):\n  return x * self.weight\n");
    auto frozen = torch::jit::freeze(module);
    EXPECT_THAT(message_of([&] { fully_shard(frozen); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: ")), HasSubstr("frozen"),
                      HasSubstr("before torch::jit::freeze")));
    auto sharded = fully_shard(module);
    EXPECT_THAT(message_of([&] { fully_shard(module); }), HasSubstr("sharded before"));
  });
}

TEST(Options, ThatMeanNothingOnTheCPUOrNameADeviceThatIsNotThereAreRefused) {
  auto nothing = [](BagImpl&) {};
  FullyShardOptions offload;
  offload.offload_policy = CPUOffloadPolicy{};
  expect_refused(nothing, {"FullyShardOptions::offload_policy", "is on the CPU", "only the disk tier means something"},
                 offload);
  offload.device = c10::Device(c10::kCUDA, 0);
  expect_refused(nothing, {"FullyShardOptions::device", "found cuda:0", "cuda has 0 here"}, offload);
}

TEST(Options, ThatContradictAreRefused) {
  FullyShardOptions descends_only;
  descends_only.auto_wrap_policy = AutoWrapPolicy(nullptr, [](const WrapCandidate&) { return true; });
  expect_refused([](BagImpl&) {}, {"auto_wrap_policy", "not what to wrap"}, descends_only);

  FullyShardOptions wraps;
  wraps.auto_wrap_policy = size_based_auto_wrap_policy(1);
  run_thread_ranks(2, [&](int) {
    nn::Linear a(2, 2), b(2, 2);
    EXPECT_THAT(message_of([&] { fully_shard({a.get(), b.get()}, wraps); }),
                AllOf(HasSubstr("auto_wrap_policy"), HasSubstr("found list of 2 modules")));
    torch::jit::Module script("Empty");
    script.register_attribute("training", c10::BoolType::get(), true);
    EXPECT_THAT(message_of([&] { fully_shard(script, wraps); }), HasSubstr("auto_wrap_policy"));
    EXPECT_THAT(message_of([&] { fully_shard(std::vector<nn::Module*>{}); }), HasSubstr("empty list of modules"));
  });
}

TEST(Options, IgnoredParametersOfAnotherModuleAreRefused) {
  FullyShardOptions options;
  options.ignored_params = {torch::ones({9, 9})};
  expect_refused([](BagImpl&) {}, {"ignored_params", "sizes [9, 9]", "no parameter under Bag"}, options);
}

TEST(Options, IgnoredParametersThatAreShardedAlreadyAreRefused) {
  expect_training_survives([](const InTraining& t) {
    FullyShardOptions options;
    options.ignored_params = {t.net.up->weight};
    nn::Sequential around(t.net.up, nn::Linear(2, 2));
    EXPECT_THAT(message_of([&] { fully_shard(*around, options); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] fully_shard: ")),
                      HasSubstr("ignored_params has '0.weight'"), HasSubstr("an earlier call has sharded")));
  });
}

TEST(Options, AnUndefinedIgnoredParameterIsRefused) {
  FullyShardOptions options;
  options.ignored_params = {torch::Tensor()};
  expect_refused([](BagImpl&) {}, {"ignored_params", "undefined"}, options);
}

TEST(GroupOf, AnUnshardedModuleIsRefused) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_EQ(group_of(*t.net.up).name(), "up");
    EXPECT_THAT(message_of([&] { group_of(*t.net.norm); }),
                AllOf(HasSubstr("fsdp::group_of"), HasSubstr("no group of its own"), HasSubstr("fsdp::fully_shard")));
  });
}

TEST(BeforeInitProcessGroup, FullyShardIsRefused) {
  nn::Linear linear(3, 2);
  EXPECT_THAT(message_of([&] { fully_shard(linear); }), HasSubstr("init_process_group"));
  EXPECT_EQ(linear->weight.size(0), 2);
}

TEST(AGroup, RefusesADivideFactorThatIsNotPositive) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_THAT(message_of([&] { t.group.set_gradient_divide_factor(0); }),
                HasSubstr("expected a finite factor above 0"));
    EXPECT_THAT(message_of([&] { t.group.set_gradient_divide_factor(std::nan("")); }), HasSubstr("found nan"));
    EXPECT_THAT(message_of([&] { t.group.set_gradient_divide_factor(INFINITY); }), HasSubstr("found inf"));
  });
}

// The optimizer keeps the first module's parameters, and with them its groups.
TEST(FullyShard, OfANewModuleAtTheAddressOfOneThatIsGoneWorks) {
  run_thread_ranks(2, [](int) {
    std::optional<MisuseNetImpl> net;
    std::vector<torch::Tensor> kept;
    for (int again = 0; again < 3; ++again) {
      build_alike([&] { return &net.emplace(); });
      auto group = shard(*net);
      EXPECT_EQ(group.stats().groups, 4);
      for (const auto& parameter : net->parameters()) kept.push_back(parameter);
    }
  });
}

}  // namespace
}  // namespace fsdp::test
