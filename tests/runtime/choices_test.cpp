// Tests of what the library chooses or recommends from a few facts: the roles of a mesh's axes, the groups on disk, a
// better strategy, smaller groups.

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <sstream>

#include "api/placement_choice.h"
#include "api/plan.h"
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

TEST(DiskChoice, KeepsInMemoryWhatFitsInOrder) {
  const std::vector<int64_t> bytes{40, 30, 50, 20};
  EXPECT_THAT(choose_on_disk(bytes, 0, 140), ElementsAre(false, false, false, false));
  EXPECT_THAT(choose_on_disk(bytes, 0, 139), ElementsAre(false, false, false, true));
  EXPECT_THAT(choose_on_disk(bytes, 0, 90), ElementsAre(false, false, true, false));
  EXPECT_THAT(choose_on_disk(bytes, 60, 90), ElementsAre(true, false, true, true));
}

// Returns the advice for a model of 800 MB on 4 ranks with AdamW. kReplicate needs 800 MB of rows, 300 + 600 MB of
// gradients and 1600 MB of optimizer state, 2300 MB more than kFullShard.
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
  EXPECT_EQ(text.str(),
            "A rank waits for others during 20 % of the time, and holds at most 1000 MB with kFullShard. kReplicate "
            "would move two thirds of the bytes and hold 3300 MB; 2300 MB are available.\nA rank waits for others "
            "during 4 % of the time, "
            "and holds at most 1000 MB with kFullShard. No other strategy would be better.");
}

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;
};

// Expects whether each of `world` ranks gets a hint in two scopes of a model whose layers take 12 MB each.
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
  expect_hints(2, 2, {}, false, false);  // the model is small
  expect_hints(1, 3, {}, false, false);  // one rank gathers nothing
  expect_hints(2, 3, {}, /*has_blocks=*/true, false);
  expect_hints(2, 3, {.strategy = kShardGradOp}, false, false);  // this strategy means to keep all parameters whole
}

}  // namespace
}  // namespace fsdp::test
