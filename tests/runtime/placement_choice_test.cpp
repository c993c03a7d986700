// What the axes of a mesh are to a strategy.

#include "api/placement_choice.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr Strategy kSharding[] = {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer};

AxisRoles roles_of(Strategy strategy, const Names& axes) { return choose_axes(strategy, axes, "here: "); }

std::string error_of(Strategy strategy, const Names& axes) {
  try {
    roles_of(strategy, axes);
    return "no error";
  } catch (const UsageError& error) {
    return error.what_without_backtrace();
  }
}

TEST(AxisRoles, OneAxisIsShardedOverWhateverItsName) {
  for (const auto strategy : kSharding)
    for (const auto* name : {"shard", "dp"}) EXPECT_EQ(roles_of(strategy, {name}), (AxisRoles{.shard = name}));
}

TEST(AxisRoles, OneAxisReplicatesWithTheStrategyThatReplicates) {
  for (const auto* name : {"shard", "dp", "replicate"})
    EXPECT_EQ(roles_of(Strategy::kReplicate, {name}), (AxisRoles{.replicate = {name}}));
}

TEST(AxisRoles, TwoAxesAreKnownByTheirNamesInAnyOrder) {
  const AxisRoles hybrid{.shard = "shard", .replicate = {"replicate"}};
  for (const auto strategy : kSharding) {
    EXPECT_EQ(roles_of(strategy, {"replicate", "shard"}), hybrid);
    EXPECT_EQ(roles_of(strategy, {"shard", "replicate"}), hybrid);
  }
  const AxisRoles replicated{.replicate = {"shard", "replicate"}};
  EXPECT_EQ(roles_of(Strategy::kReplicate, {"replicate", "shard"}), replicated);
}

TEST(AxisRoles, OtherAxesAreRefused) {
  for (const auto& axes : {Names{}, Names{"dp", "shard"}, Names{"stage", "replicate", "shard"}})
    for (const auto strategy : {Strategy::kFullShard, Strategy::kReplicate})
      EXPECT_THAT(error_of(strategy, axes),
                  AllOf(HasSubstr("here: "), HasSubstr("mesh: expected one axis, or the axes 'replicate' and 'shard'"),
                        HasSubstr(axes.empty() ? "found ''" : axes.front())));
}

TEST(AxisRoles, AnAxisThatReplicatesIsNotShardedOver) {
  for (const auto strategy : kSharding)
    EXPECT_THAT(error_of(strategy, {"replicate"}), AllOf(HasSubstr("named 'replicate', but k"), HasSubstr(" shards")));
}

}  // namespace
}  // namespace fsdp::test
