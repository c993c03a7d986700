// Tests of how a strategy uses the axes of a mesh.

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

}  // namespace
}  // namespace fsdp::test
