#include "runtime/runs.h"

#include <gmock/gmock.h>

namespace fsdp::runtime {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kShard = 1, kGradients = 2, kMoments = 3;

// `numel` elements at `first` of the shard, with a gradient and one state that lie as the rows do.
Extent extent_at(int64_t first, int64_t numel, Recipe recipe = {}) {
  return {true, recipe, numel, {{kShard, first}, {kGradients, first}, {kMoments, first}}};
}

// testing::Test has a member of the type's name.
Run run(size_t first, size_t count, int64_t numel) { return {first, count, numel}; }

TEST(Runs, NothingGivesNoRuns) {
  EXPECT_THAT(plan_runs({}), IsEmpty());
  EXPECT_THAT(plan_runs(std::vector<Extent>(3)), IsEmpty());
}

TEST(Runs, NeighboursShareARunAcrossThePaddingBetweenThem) {
  std::vector<Extent> extents{extent_at(0, 10), extent_at(16, 5), extent_at(32, 16)};
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 3, 48)));
}

TEST(Runs, OtherMemoryMayBeginElsewhereAsLongAsDistancesAreTheRows) {
  std::vector<Extent> extents{extent_at(64, 10), extent_at(80, 5)};
  for (auto& extent : extents) extent.spots[2].first -= 64;
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 2, 21)));
}

TEST(Runs, AnotherRecipeStartsARun) {
  std::vector<Extent> extents{extent_at(0, 8), extent_at(8, 8, {1, 0, 0}), extent_at(16, 8, {1, 0, 0}),
                              extent_at(24, 8)};
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 1, 8), run(1, 2, 16), run(3, 1, 8)));
}

TEST(Runs, RowsThatAreLeftAloneAreInNoRun) {
  std::vector<Extent> extents{extent_at(0, 8), Extent{}, extent_at(16, 8), Extent{}};
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 1, 8), run(2, 1, 8)));
}

TEST(Runs, AGradientInAnotherBlockOrAtAnotherDistanceStartsARun) {
  std::vector<Extent> extents{extent_at(0, 8), extent_at(8, 8), extent_at(16, 8)};
  extents[1].spots[1].block = 9;
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 1, 8), run(1, 1, 8), run(2, 1, 8)));
  extents[1].spots[1] = {kGradients, 100};
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 1, 8), run(1, 1, 8), run(2, 1, 8)));
}

TEST(Runs, StateInAnotherBlockStartsARun) {
  std::vector<Extent> extents{extent_at(0, 8), extent_at(8, 8)};
  extents[1].spots[2].block = 9;
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 1, 8), run(1, 1, 8)));
}

TEST(Runs, MemoryOfItsOwnIsNeverJoinedWhateverItsAddress) {
  std::vector<Extent> extents{extent_at(0, 8), extent_at(8, 8)};
  for (auto& extent : extents) extent.spots[1].block = 0;
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 1, 8), run(1, 1, 8)));
}

TEST(Runs, ExtentsWithDifferentNumbersOfStatesAreApart) {
  std::vector<Extent> extents{extent_at(0, 8), extent_at(8, 8)};
  extents[1].spots.pop_back();
  EXPECT_THAT(plan_runs(extents), ElementsAre(run(0, 1, 8), run(1, 1, 8)));
}

}  // namespace
}  // namespace fsdp::runtime
