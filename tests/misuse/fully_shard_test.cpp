// Tests of what fully_shard refuses before it communicates. Every rank must refuse it, and the modules must stay as
// they were.

#include <torch/csrc/autograd/variable.h>
#include <torch/script.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <optional>

#include "api/group_view.h"
#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

/// A module to which the test adds parameters.
struct BagImpl : nn::Module {
  Tensor good = add("good", torch::ones({4, 2}));
  Tensor add(const std::string& name, Tensor tensor, bool requires_grad = true) {
    return register_parameter(name, std::move(tensor), requires_grad);
  }
};
TORCH_MODULE(Bag);

struct BadBag {
  std::function<void(BagImpl&)> fill;
  Words words;
};

struct OtherHook : torch::autograd::PostAccumulateGradHook {
  void operator()(const Tensor&) override {}
};

TEST(FullyShard, OfParametersThatCannotBeShardedIsRefused) {
  std::vector<Tensor> graphs(2);
  std::vector<decltype(torch::autograd::impl::grad_accumulator(Tensor()))> accumulators(2);
  const Words gaps{"parameter 'bad'", "not dense", "sizes [", "strides [", "contiguous()"};
  const Words twins{"'first'", "'second'", "share memory", "a->weight = b->weight"};
  const std::vector<BadBag> bags{
      {[](auto& bag) { bag.add("used", torch::ones({3, 2})).sum().backward(); },
       {"parameter 'used'", "already has a gradient", "zero_grad()"}},
      {[&](auto& bag) { graphs[static_cast<size_t>(rank())] = bag.add("used", torch::ones({3, 2})).sum(); },
       {"parameter 'used'", "part of a graph", "release the loss, the outputs"}},
      {[](auto& bag) { bag.add("bad", torch::ones({3, 5}).t()); }, gaps},
      {[](auto& bag) { bag.add("bad", torch::ones({6, 5}).slice(1, 0, 3)); }, gaps},
      {[](auto& bag) { bag.add("bad", torch::ones({1, 5}).expand({4, 5})); }, gaps},
      {[](auto& bag) {
         auto all = torch::ones({6, 3});
         bag.add("first", all.slice(0, 0, 4).detach());
         bag.add("second", all.slice(0, 2, 6).detach());
       },
       twins},
      {[](auto& bag) { bag.add("second", bag.add("first", torch::ones({6, 3})).detach()); }, twins},
      {[](auto& bag) { bag.add("made", torch::ones({3, 2}, torch::requires_grad()) * 2); },
       {"parameter 'made'", "not a leaf", "MulBackward", "requires_grad_()"}},
      {[](auto& bag) { bag.add("few", torch::ones({3, 2}).to_sparse()); },
       {"parameter 'few'", "layout Sparse", "expected a strided tensor", "dense"}},
      {[](auto& bag) { bag.add("coarse", at::_empty_affine_quantized({3, 2}, torch::kQInt8, 0.1, 0), false); },
       {"parameter 'coarse'", "is quantised", "expected a plain tensor", "ignored_params"}},
      {[](auto& bag) {
         bag.add("ragged", at::_nested_tensor_from_tensor_list({torch::ones({2, 3}), torch::ones({4, 3})}), false);
       },
       {"parameter 'ragged'", "is nested", "expected a plain tensor", "ignored_params"}},
      {[&](auto& bag) {
         accumulators[static_cast<size_t>(rank())] =
             torch::autograd::impl::grad_accumulator(bag.add("kept", torch::ones({3, 2})));
       },
       {"parameter 'kept'", "a caller of torch::autograd::impl::grad_accumulator holds its node", "and that node"}},
      {[](auto& bag) {
         const auto hooked = bag.add("hooked", torch::ones({3, 2}));
         torch::autograd::impl::set_post_acc_grad_hooks(hooked, std::make_unique<OtherHook>());
       },
       {"parameter 'hooked'", "set_post_acc_grad_hooks", "register_hook"}},
      {[](auto& bag) { bag.add("tiny", torch::ones({3, 2}).to(torch::kFloat8_e4m3fn)); },
       {"parameter 'tiny'", "Float8_e4m3fn", "expected Half, BFloat16, Float or Double", "Freeze the parameter"}},
      {[](auto& bag) { bag.add("phase", torch::ones({3, 2}, torch::kComplexFloat)); },
       {"parameter 'phase'", "ComplexFloat", "expected a floating point dtype", "ignored_params"}},
      {[](auto& bag) { bag.add("zeros", torch::_efficientzerotensor({3, 2})); },
       {"parameter 'zeros'", "is a zero tensor", "expected a plain tensor", "ignored_params"}},
      {[](auto& bag) { bag.add("turned", torch::_neg_view(torch::ones({3, 2}))); }, {"'turned'", "is negated"}},
      {[](auto& bag) { bag.add("mirrored", torch::_conj(torch::ones({3, 2}, torch::kComplexFloat)), false); },
       {"'mirrored'", "is conjugated"}},
      {[](auto& bag) {
         c10::InferenceMode inference;
         bag.add("inferred", torch::ones({3, 2}));
       },
       {"parameter 'inferred'", "inference mode"}}};
  run_thread_ranks(2, [&](int) {
    for (const auto& bad : bags) {
      SCOPED_TRACE(bad.words[0] + " " + bad.words[1]);
      Bag bag;
      bad.fill(*bag);
      auto words = bad.words;
      words.emplace_back("@fully_shard: ");
      expect_error([&] { fully_shard(*bag); }, words);
      EXPECT_EQ(bag->good.size(0), 4) << "it was not sharded";
    }
    barrier();
  });
}

TEST(FullyShard, OfBuffersThatCannotTakeRank0sValuesIsRefusedWhereTheyAreTo) {
  run_thread_ranks(2, [](int) {
    for (const auto& buffer : {torch::_efficientzerotensor({3}), torch::_neg_view(torch::ones({3}))}) {
      Bag bag;
      bag->register_buffer("put_off", buffer);
      expect_error([&] { fully_shard(bag, {.sync_module_states = true}); },
                   {"@fully_shard: ", "buffer 'put_off'", "a zero tensor, conjugated, negated", "clone()"});
      EXPECT_EQ(fully_shard(bag).stats().parameter_numel, 8) << "they are left alone";
    }
  });
}

TEST(FullyShard, IgnoresUnusualParametersWhenTold) {
  run_thread_ranks(2, [](int) {
    Bag bag;
    FullyShardOptions options;
    options.ignored_params = {bag->add("few", torch::ones({3, 2}).to_sparse(), false),
                              bag->add("empty", torch::ones({3, 2}, torch::kMeta)),
                              bag->add("turned", torch::ones({3, 2}).t())};
    EXPECT_EQ(fully_shard(bag, options).stats().parameter_numel, 8);
    EXPECT_THAT(c10::str(group_of(*bag)), testing::HasSubstr("few [3, 2] not sharded"));
  });
}

TEST(FullyShard, TwiceOnAModuleIsRefused) {
  expect_refused(
      {{kOutside,
        {"@fully_shard: ", "sharded before", "fsdp::group_of"},
        {[](auto& t) { fully_shard(*t.net.up); }, [](auto& t) { fully_shard(static_cast<nn::Module&>(t.net)); },
         [](auto& t) { fully_shard({t.net.up.get()}); },
         [](auto& t) { fully_shard({t.net.norm.get(), t.net.down.get()}); }}},
       {kOutside, {"fsdp::group_of", "no group of its own", "fsdp::fully_shard"}, {[](auto& t) {
          static_cast<void>(group_of(*t.net.norm));
        }}},
       {kOutside, {"@fully_shard: ", "ignored_params has '0.weight'", "an earlier call has sharded"}, {[](auto& t) {
          nn::Sequential around(t.net.up, nn::Linear(2, 2));
          fully_shard(*around, {.ignored_params = {t.p}});
        }}}});
}

// A module whose layers are in a std::vector, which registers nothing.
struct Unregistered : nn::Module {
  std::vector<nn::Linear> layers{nn::Linear(4, 4)};
  Tensor forward(const Tensor& x) { return layers[0](x); }
};

TEST(FullyShard, OfAModuleWithoutParametersIsRefused) {
  run_thread_ranks(2, [](int) {
    const Words none{"@fully_shard: ", "there are no parameters under", "torch::nn::ModuleList"};
    expect_error([] { fully_shard(std::make_shared<Unregistered>()); }, none);
    expect_error([] { fully_shard(nn::Sequential(nn::Tanh(), nn::Flatten())); }, none);
    expect_error([] { fully_shard(std::vector<nn::Module*>{nn::Tanh().get()}); }, none);
    torch::jit::Module script("Twice");
    script.register_attribute("training", c10::BoolType::get(), false);
    script.define("def forward(self, x):\n  return x * 2\n");
    expect_error([&] { fully_shard(script); }, none);
  });
}

// A module that shares its parameter with a sharded module, which is neither inside nor around it.
struct Tied : nn::Module {
  explicit Tied(const Tensor& of) : weight(register_parameter("weight", of)) {}
  Tensor weight;
};

TEST(FullyShard, OfAModuleWhoseParametersAreTiedIsFoundAgainWithoutItsHandle) {
  run_thread_ranks(2, [](int) {
    auto first = linear_alike();
    const auto tied = std::make_shared<Tied>(first->weight);
    fully_shard(*first);
    fully_shard(*tied);
    EXPECT_EQ(handle_of(*tied).stats().parameter_numel, 20) << "with the group of the tied parameter";
    std::weak_ptr<runtime::ParamGroup> group = param_groups(group_of(*tied)).front();
    first = nullptr;
    tied->weight = Tensor();
    EXPECT_FALSE(group.expired()) << "the module still has the parameter";
  });
}

TEST(FullyShard, OfAModuleWhoseParametersAreAllIgnoredIsFound) {
  run_thread_ranks(2, [](int) {
    nn::Linear linear(2, 2);
    const Group model = fully_shard(*linear, {.ignored_params = linear->parameters()});
    EXPECT_EQ(group_of(*linear).stats().parameter_numel, model.stats().parameter_numel);
  });
}

// A module with no parameters but those of its layer, so its own group has none.
struct AroundALayer : nn::Module {
  explicit AroundALayer(const nn::Linear& its = nn::Linear(4, 4)) : layer(register_module("layer", its)) {}
  nn::Linear layer;
};

TEST(FullyShard, OfAModelWhereOneWasWhoseGraphLivesOn) {
  run_thread_ranks(2, [](int) {
    alignas(AroundALayer) std::array<std::byte, sizeof(AroundALayer)> place;
    Tensor y;
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

// The models are on the stack, without a shared pointer. Only the graph or the layer of an earlier model is kept.
TEST(FullyShard, OfAModelOnTheStackWhereOneWasWhoseLayerOrGraphLivesOn) {
  run_thread_ranks(2, [](int) {
    std::optional<AroundALayer> model;
    Tensor y;
    for (int round = 0; round < 4; ++round) {
      if (round % 2 == 0)
        fully_shard(*build_alike([&] { return &model.emplace(); })->layer);
      else
        model.emplace(nn::Linear(model->layer));
      auto group = fully_shard(static_cast<nn::Module&>(*model));
      expect_error([&] { fully_shard(static_cast<nn::Module&>(*model)); }, {"sharded before"});
      EXPECT_EQ(group_of(*model).stats().groups, 2);
      ForwardScope scope(group);
      y = model->layer->forward(torch::ones({1, 4})).sum();
    }
  });
}

// A shared pointer takes ownership of a module only after the module's constructor.
TEST(FullyShard, OfAModelThatGetsItsOwnerLaterIsFoundAgain) {
  run_thread_ranks(2, [](int) {
    auto* model = build_alike([] { return new AroundALayer; });
    fully_shard(*model->layer);
    fully_shard(static_cast<nn::Module&>(*model));
    const std::shared_ptr<AroundALayer> owner(model);
    EXPECT_EQ(group_of(*owner).stats().groups, 2);
    expect_error([&] { fully_shard(static_cast<nn::Module&>(*owner)); }, {"sharded before"});
  });
}

// The optimizer keeps the first module's parameters alive, and with them their groups.
TEST(FullyShard, OfANewModuleAtTheAddressOfOneThatIsGoneWorks) {
  run_thread_ranks(2, [](int) {
    std::optional<MisuseNetImpl> net;
    std::vector<Tensor> kept;
    for (int again = 0; again < 3; ++again) {
      build_alike([&] { return &net.emplace(); });
      EXPECT_EQ(shard(*net).stats().groups, 4);
      for (const auto& parameter : net->parameters()) kept.push_back(parameter);
    }
  });
}

TEST(FullyShard, OfABlockAfterTheModelAroundItIsRefused) {
  run_thread_ranks(2, [](int) {
    auto model = build_alike([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)); });
    auto sharded = fully_shard(model);
    expect_error([&] { fully_shard(*model->ptr(0)); },
                 {"all parameters of", "are in the group", "Shard the inner modules first"});
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

TEST(FullyShard, AtTheWrongTimeIsRefused) {
  run_thread_ranks(2, [](int) {
    auto linear = build_alike([] { return nn::Linear(3, 4); });
    auto x = torch::ones({2}, torch::requires_grad());
    std::string message;
    x.register_hook([&](const Tensor&) { message = message_of([&] { fully_shard(linear); }); });
    (x * 2).sum().backward();
    EXPECT_THAT(message, says({"inside a backward", "before training"}));
    {
      c10::InferenceMode inference;
      expect_error([&] { fully_shard(linear); }, {"@", "outside of c10::InferenceMode"});
    }
    EXPECT_EQ(linear->weight.size(0), 4);
    linear(torch::ones({1, 3})).sum().backward();
    linear->zero_grad();
    EXPECT_EQ(fully_shard(linear).stats().parameter_numel, 16) << "the graph is gone";
  });
  nn::Linear before_init(3, 2);
  expect_error([&] { fully_shard(before_init); }, {"init_process_group"});
  EXPECT_EQ(before_init->weight.size(0), 2);
}

TEST(FullyShard, OfANullPointerIsRefused) {
  const Words null{"fsdp::fully_shard", "null pointer"};
  expect_error([] { fully_shard(std::shared_ptr<nn::LinearImpl>()); }, null);
  expect_error([] { fully_shard(std::vector<nn::Module*>{nullptr}); }, null);
  expect_error<c10::Error>([] { fully_shard(nn::Linear(nullptr)); }, {"empty ModuleHolder"});
}

// Each process group has its own scopes, queues and memory.
TEST(FullyShard, OverTwoProcessGroupsInOneTreeIsRefused) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  run_thread_ranks(2, [&](int r) {
    FullyShardOptions other;
    other.process_group = make_thread_rank(store, r, 2, {});
    auto [inner, outer] = build_alike([] { return std::pair(nn::Linear(2, 2), nn::Linear(2, 2)); });
    auto inner_group = fully_shard(*inner, other);
    nn::Sequential both(inner, outer);
    nn::Linear tied(2, 2);
    tied->register_parameter("tied", inner->weight);
    const Words expected{"@fully_shard: ", "'Linear'", "different process group", "FullyShardOptions::process_group"};
    expect_error([&] { fully_shard(both); }, expected);
    expect_error([&] { fully_shard(tied); }, expected);

    auto group = fully_shard(*outer);
    expect_error([&] { group.set_modules_to_forward_prefetch({inner_group}); },
                 {"set_modules_to_forward_prefetch", "but 'Linear' is sharded over a different one"});
    expect_error([&] { group.set_modules_to_backward_prefetch({inner_group}); }, {"set_modules_to_backward_prefetch"});
    barrier();
  });
}

TEST(FullyShard, OfAFrozenScriptModuleIsRefused) {
  run_thread_ranks(2, [](int) {
    torch::jit::Module module("Scale");
    module.register_parameter("weight", torch::ones({4, 2}), false);
    module.register_attribute("training", c10::BoolType::get(), false);
    module.define("def forward(self, x):\n  return x * self.weight\n");
    auto frozen = torch::jit::freeze(module);
    expect_error([&] { fully_shard(frozen); }, {"@fully_shard: ", "frozen", "before torch::jit::freeze"});
    auto sharded = fully_shard(module);
    expect_error([&] { fully_shard(module); }, {"sharded before"});
  });
}

}  // namespace
}  // namespace fsdp::test
