// What the library chooses or advises from a few facts: the roles of a mesh's axes, smaller groups.

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "api/placement_choice.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Names = std::vector<std::string>;
using enum Strategy;

constexpr Strategy kSharding[] = {kFullShard, kShardGradOp, kShardOptimizer};

AxisRoles roles_of(Strategy strategy, const Names& axes) { return choose_axes(strategy, axes, "here: "); }

TEST(AxisRoles, OfOneAxisAreThoseOfTheStrategyAndOfTwoThoseOfTheirNames) {
  for (const auto strategy : kSharding) {
    for (const auto* name : {"shard", "dp"}) EXPECT_EQ(roles_of(strategy, {name}), (AxisRoles{.shard = name}));
    for (const auto& names : {Names{"replicate", "shard"}, Names{"shard", "replicate"}})
      EXPECT_EQ(roles_of(strategy, names), (AxisRoles{.shard = "shard", .replicate = {"replicate"}}));
  }
  for (const auto* name : {"shard", "dp", "replicate"})
    EXPECT_EQ(roles_of(kReplicate, {name}), (AxisRoles{.replicate = {name}}));
  EXPECT_EQ(roles_of(kReplicate, {"replicate", "shard"}), (AxisRoles{.replicate = {"shard", "replicate"}}));
}

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;
};

// What the ranks of `world` are told in two scopes of a model of layers of 12 MB.
void expect_hints(int world, int layers, const FullyShardOptions& options, bool has_blocks, bool is_told) {
  run_thread_ranks_with(world, {.backend = "gloo"}, [&](int rank) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    torch::nn::ModuleList net;
    for (int i = 0; i < layers; ++i)
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1750, 1750).bias(false)));
    for (auto& parameter : net->parameters()) parameter.detach().zero_();
    if (has_blocks)
      for (auto& layer : *net) fully_shard(*layer, options);
    const auto model = fully_shard(*net, options);
    for (int i = 0; i < 2; ++i) ForwardScope(model).close();
    if (rank == 0 && is_told)
      EXPECT_THAT(warnings.messages, ElementsAre(testing::AllOf(HasSubstr("'ModuleList' is one group: all 37 MB"),
                                                                HasSubstr("fsdp::fully_shard on them first"),
                                                                HasSubstr("FullyShardOptions::auto_wrap_policy"))));
    else
      EXPECT_THAT(warnings.messages, IsEmpty());
  });
}

TEST(OneLargeGroup, IsToldOnceOnTheFirstRankWhatIsAtStake) {
  expect_hints(2, 3, {}, /*has_blocks=*/false, /*is_told=*/true);
  expect_hints(2, 2, {}, false, false);  // small
  expect_hints(1, 3, {}, false, false);  // nothing is gathered
  expect_hints(2, 3, {}, /*has_blocks=*/true, false);
  expect_hints(2, 3, {.strategy = kShardGradOp}, false, false);  // all of it is meant to be whole
}

}  // namespace
}  // namespace fsdp::test
