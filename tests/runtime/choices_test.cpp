// What is chosen or advised from a few facts: the roles of a mesh's axes, the groups on disk, a better strategy.

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "api/advice_choice.h"
#include "api/disk_choice.h"
#include "api/placement_choice.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
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

void expect_axes_refused(Strategy strategy, const Names& axes, const std::vector<std::string>& parts) {
  try {
    roles_of(strategy, axes);
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    for (const auto& part : parts) EXPECT_THAT(error.what_without_backtrace(), HasSubstr(part));
  }
}

TEST(AxisRoles, AreRefusedToOtherAxes) {
  for (const auto& axes : {Names{}, Names{"dp", "shard"}, Names{"stage", "replicate", "shard"}})
    for (const auto strategy : {kFullShard, kReplicate})
      expect_axes_refused(strategy, axes,
                          {"here: ", "mesh: expected one axis, or the axes 'replicate' and 'shard'",
                           axes.empty() ? "found ''" : axes.front()});
  for (const auto strategy : kSharding)
    expect_axes_refused(strategy, {"replicate"}, {"named 'replicate', but k", " shards"});
}

TEST(DiskChoice, KeepsInMemoryWhatFitsInOrder) {
  const std::vector<int64_t> bytes{40, 30, 50, 20};
  EXPECT_THAT(choose_on_disk(bytes, 0, 140), ElementsAre(false, false, false, false));
  EXPECT_THAT(choose_on_disk(bytes, 0, 139), ElementsAre(false, false, false, true));
  EXPECT_THAT(choose_on_disk(bytes, 0, 90), ElementsAre(false, false, true, false));
  EXPECT_THAT(choose_on_disk(bytes, 60, 90), ElementsAre(true, false, true, true));
  EXPECT_THAT(choose_on_disk(bytes, 0, 0), ElementsAre(true, true, true, true));
}

// For a model of 800 MB on 4 ranks with AdamW. Replicated it has 800 of rows, 300 + 600 of gradients and 1600 of state,
// which are 2300 more.
Advice advice(double waiting_share, int64_t spare_mb, Strategy strategy = kFullShard) {
  constexpr int64_t kMB = 1'000'000;
  return choose_advice({.strategy = strategy,
                        .waiting_share = waiting_share,
                        .parameter_bytes = 800 * kMB,
                        .shards = 4,
                        .rows = 200 * kMB,
                        .whole = 100 * kMB,
                        .gradient = 300 * kMB,
                        .optimizer = 400 * kMB,
                        .spare_bytes = spare_mb * kMB});
}

TEST(Advice, IsToKeepWhatWaitsAndFitsWhole) {
  struct Case {
    double waiting_share;
    int64_t spare_mb;
    Strategy better;
    int64_t bytes_then;
  };
  for (const auto& it : {Case{0.2, 2300, kReplicate, 3'300'000'000}, Case{0.2, 2299, kShardGradOp, 1'700'000'000},
                         Case{0.2, 700, kShardGradOp, 1'700'000'000}, Case{0.2, 699, kFullShard, 1'000'000'000},
                         Case{0.04, 9000, kFullShard, 1'000'000'000}}) {
    const auto found = advice(it.waiting_share, it.spare_mb);
    EXPECT_EQ(found.better, it.better) << it.spare_mb;
    EXPECT_EQ(found.bytes_now, 1'000'000'000);
    EXPECT_EQ(found.bytes_then, it.bytes_then) << it.spare_mb;
  }
  EXPECT_EQ(advice(0.2, 9000, kReplicate).better, kReplicate);
}

TEST(Advice, IsASentence) {
  std::ostringstream text;
  text << advice(0.2, 2300) << '\n' << advice(0.04, 9000);
  EXPECT_EQ(
      text.str(),
      "20 % of the time a rank waits for others, and holds at most 1000 MB with kFullShard. kReplicate would move "
      "two thirds of the bytes and hold 3300 MB; 2300 MB are to spare.\n4 % of the time a rank waits for others, "
      "and holds at most 1000 MB with kFullShard. Nothing else would serve better.");
}

}  // namespace
}  // namespace fsdp::test
