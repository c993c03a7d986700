// Tests of changes under a sharded module after fully_shard: modules and parameters that are added, and replacements of
// those that are sharded. The next scope that opens finds them.

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

Words stray(const std::string& parameter) {
  return {"@forward scope: parameter '" + parameter + "' was registered after fsdp::fully_shard", "is in no group",
          "FullyShardOptions::ignored_params"};
}

TEST(LaterChanges, ARegisteredParameterOrOneOfAReplacedModuleIsNamedOnceWhenTheNextScopeOpens) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return std::make_shared<MisuseNetImpl>(); });
    auto group = shard(*net);
    net->register_parameter("at_once", torch::ones({4}));
    expect_error([&] { ForwardScope scope(group); }, stray("at_once"));
    EXPECT_NO_THROW(ForwardScope(group).close());
    net->down->register_parameter("scale", torch::ones({4}));
    expect_error([&] { ForwardScope scope(group); }, stray("down.scale"));
    EXPECT_NO_THROW(ForwardScope(group).close());
    net->register_parameter("shift", torch::ones({4}));
    expect_error([&] { handle_of (*net)(small_ids(share(0))); }, stray("shift"));
    EXPECT_NO_THROW(ForwardScope(group).close());
    net->replace_module("up", nn::Linear(4, 6));
    expect_error([&] { ForwardScope scope(group); }, stray("up.weight"));
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
    auto other = linear_alike(4, 2);
    fully_shard(*other);
    net->replace_module("1", other);
    EXPECT_NO_THROW(ForwardScope(model).close());
    for (bool all : {false, true}) {
      auto partly = linear_alike(4, 2);
      FullyShardOptions its;
      its.ignored_params = {partly->bias};
      if (all) its.ignored_params.push_back(partly->weight);
      auto its_handle = fully_shard(partly, its);
      net->replace_module("1", partly);
      EXPECT_NO_THROW(ForwardScope(model).close());
    }
  });
}

// A module that the caller owns may be destroyed before its handle.
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
