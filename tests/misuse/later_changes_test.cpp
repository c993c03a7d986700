// What comes under a sharded module after fully_shard, or replaces what fsdp put there: found when the next scope
// opens.

#include <torch/csrc/autograd/variable.h>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

testing::Matcher<std::string> names_stray(const std::string& parameter) {
  return AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/", world_size(), "] forward scope: parameter '", parameter,
                                  "' came under the module after fsdp::fully_shard")),
               HasSubstr("is in no group"), HasSubstr("FullyShardOptions::ignored_params"));
}

TEST(LaterChanges, ARegisteredParameterIsNamedOnceWhenTheNextScopeOpens) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return std::make_shared<MisuseNetImpl>(); });
    auto group = shard(*net);
    EXPECT_NO_THROW(ForwardScope(group).close());
    net->down->register_parameter("scale", torch::ones({4}));
    EXPECT_THAT(message_of([&] { ForwardScope scope(group); }), names_stray("down.scale"));
    EXPECT_NO_THROW(ForwardScope(group).close());
    net->register_parameter("shift", torch::ones({4}));
    EXPECT_THAT(message_of([&] { handle_of (*net)(small_ids(share(0))); }), names_stray("shift"));
    EXPECT_NO_THROW(ForwardScope(group).close());
  });
}

TEST(LaterChanges, AReplacedModuleIsNamedByItsParameter) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 2)); });
    fully_shard(*net[0]);
    auto model = fully_shard(net);
    model(torch::ones({2, 4}));
    net->replace_module("0", nn::Linear(4, 4));
    EXPECT_THAT(message_of([&] { ForwardScope scope(model); }), names_stray("0.weight"));
  });
}

TEST(LaterChanges, BetweenFullyShardAndTheFirstScopeAreFoundToo) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return nn::Linear(4, 4); });
    auto model = fully_shard(net);
    net->register_parameter("scale", torch::ones({4}));
    EXPECT_THAT(message_of([&] { model(torch::ones({2, 4})); }), names_stray("scale"));
    EXPECT_EQ(model(torch::ones({2, 4})).size(0), 2);
  });
}

TEST(LaterChanges, IgnoredParametersAndModulesThatAreShardedThemselvesAreMeant) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 2)); });
    FullyShardOptions options;
    options.ignored_params = {net[0]->as<nn::Linear>()->bias};
    fully_shard(*net[0], options);
    auto model = fully_shard(net);
    EXPECT_NO_THROW(model(torch::ones({2, 4})));
    EXPECT_NO_THROW(group_of(*net[0]).unshard().wait());
    EXPECT_NO_THROW(ForwardScope(group_of(*net[0])).close());
    auto other = build_alike([] { return nn::Linear(4, 2); });
    fully_shard(*other);
    net->replace_module("1", other);
    EXPECT_NO_THROW(ForwardScope(model).close());
    for (bool all : {false, true}) {
      auto partly = build_alike([] { return nn::Linear(4, 2); });
      FullyShardOptions its;
      its.ignored_params = {partly->bias};
      if (all) its.ignored_params.push_back(partly->weight);
      auto its_handle = fully_shard(partly, its);
      net->replace_module("1", partly);
      EXPECT_NO_THROW(ForwardScope(model).close());
    }
  });
}

struct OtherHook : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::Tensor&) override {}
};

TEST(LaterChanges, AHookInThePlaceOfOursIsNamedAndOursIsBack) {
  expect_training_survives([](const InTraining& t) {
    torch::autograd::impl::set_post_acc_grad_hooks(t.net.mid->weight, std::make_unique<OtherHook>());
    EXPECT_THAT(message_of([&] { ForwardScope scope(t.group); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] forward scope: ")),
                      HasSubstr("the hook of parameter 'mid.weight'"), HasSubstr("set_post_acc_grad_hooks"),
                      HasSubstr("register_hook")));
  });
}

TEST(LaterChanges, AnAccumulatorThatWasTakenOutsideAScopeIsNamedAndOneFromInsideIsNot) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return nn::Linear(4, 4); });
    auto model = fully_shard(net);
    const auto x = torch::ones({2, 4});
    auto kept = torch::autograd::impl::grad_accumulator(net->weight);
    EXPECT_THAT(
        message_of([&] { model(x).sum().backward(); }),
        AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] forward scope: ")), HasSubstr("parameter 'weight'"),
              HasSubstr(c10::str("rows [", local_rows(net->weight).count, ", 4]")), HasSubstr("whole sizes [4, 4]"),
              HasSubstr("take it in a forward scope")));
    kept.reset();
    {
      const ForwardScope scope(model);
      kept = torch::autograd::impl::grad_accumulator(net->weight);
    }
    model(x).sum().backward();
    EXPECT_TRUE(full_grad(net->weight).eq(2).all().item<bool>());
  });
}

// An owned module may go before its handle.
TEST(LaterChanges, AHandleOutlivesItsModule) {
  run_thread_ranks(1, [](int) {
    auto net = std::make_shared<nn::LinearImpl>(4, 2);
    const auto parameters = net->parameters();
    Group group = fully_shard(static_cast<nn::Module&>(*net));
    net.reset();
    EXPECT_NO_THROW(ForwardScope(group).close());
    EXPECT_EQ(parameters.size(), 2U);
  });
}

}  // namespace
}  // namespace fsdp::test
