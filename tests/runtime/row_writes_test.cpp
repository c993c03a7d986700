// The rows that optimizer steps write: in how many runs, and how often every rank has written.

#include "runtime/runs.h"

#include <gmock/gmock.h>

#include "runtime/write_counts.h"

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

// Three extents of 8 elements side by side, changed by `change`.
std::vector<Run> runs_of_three(const std::function<void(std::vector<Extent>&)>& change) {
  std::vector<Extent> extents{extent_at(0, 8), extent_at(8, 8), extent_at(16, 8)};
  change(extents);
  return plan_runs(extents);
}

TEST(Runs, NeighboursShareARunAcrossThePaddingBetweenThem) {
  EXPECT_THAT(plan_runs(std::vector{extent_at(0, 10), extent_at(16, 5), extent_at(32, 16)}),
              ElementsAre(run(0, 3, 48)));
  EXPECT_THAT(plan_runs({}), IsEmpty());
  EXPECT_THAT(plan_runs(std::vector<Extent>(3)), IsEmpty());
}

TEST(Runs, OtherMemoryMayBeginElsewhereAsLongAsDistancesAreTheRows) {
  EXPECT_THAT(runs_of_three([](auto& extents) {
                for (auto& extent : extents) extent.spots[0].first += 64;
              }),
              ElementsAre(run(0, 3, 24)));
}

TEST(Runs, AnotherRecipeStartsARun) {
  EXPECT_THAT(runs_of_three([](auto& extents) { extents[1].recipe = extents[2].recipe = {1, 0, 0}; }),
              ElementsAre(run(0, 1, 8), run(1, 2, 16)));
}

TEST(Runs, RowsThatAreLeftAloneAreInNoRun) {
  EXPECT_THAT(runs_of_three([](auto& extents) { extents[1] = Extent(); }), ElementsAre(run(0, 1, 8), run(2, 1, 8)));
}

TEST(Runs, OfOneExtentAloneAreThoseThatLieOtherwise) {
  const std::vector<std::pair<const char*, std::function<void(Extent&)>>> changes{
      {"its gradient in another block", [](Extent& extent) { extent.spots[1].block = 9; }},
      {"its gradient at another distance", [](Extent& extent) { extent.spots[1].first = 100; }},
      {"its state in another block", [](Extent& extent) { extent.spots[2].block = 9; }},
      {"a state less", [](Extent& extent) { extent.spots.pop_back(); }}};
  for (const auto& it : changes)
    EXPECT_THAT(runs_of_three([&](auto& extents) { it.second(extents[1]); }),
                ElementsAre(run(0, 1, 8), run(1, 1, 8), run(2, 1, 8)))
        << it.first;
}

TEST(Runs, MemoryOfItsOwnIsNeverJoinedWhateverItsAddress) {
  EXPECT_THAT(runs_of_three([](auto& extents) {
                for (auto& extent : extents) extent.spots[1].block = 0;
              }),
              ElementsAre(run(0, 1, 8), run(1, 1, 8), run(2, 1, 8)));
}

using Slots = std::vector<std::optional<size_t>>;
constexpr std::nullopt_t kAll = std::nullopt;

WriteCounts counts_of(const Slots& writes) {
  WriteCounts counts;
  for (const auto& slot : writes) counts.note(slot);
  return counts;
}

// Counted alike by ranks that have rows of all parameters and by those that have rows of some.
TEST(WriteCounts, CountAnUpdateOfAllSlotsOrOfEachSlotOnce) {
  const std::vector<std::pair<Slots, int>> counts{{{}, 0},
                                                  {{kAll}, 1},
                                                  {{kAll, kAll}, 2},
                                                  {{0, 1, 2}, 1},
                                                  {{1}, 1},
                                                  {{2, 2}, 2},
                                                  {{0, 1, 2, 2, 1, 0}, 2},
                                                  {{kAll, 0, 1, kAll}, 3},
                                                  {{1, kAll, kAll}, 3}};
  for (const auto& [writes, count] : counts) EXPECT_EQ(counts_of(writes).take(), count) << writes.size();
}

TEST(WriteCounts, BeginAgainAfterTheyWereTakenUnlessTheyAreGivenBack) {
  auto counts = counts_of({0, 1});
  EXPECT_EQ(counts.take(), 1);
  EXPECT_EQ(counts.take(), 0);
  counts.note(1);
  counts.give_back(counts.take());  // it did not reach the other ranks
  EXPECT_EQ(counts.take(), 1);
  EXPECT_EQ(counts.total(), 2);
}

}  // namespace
}  // namespace fsdp::runtime
