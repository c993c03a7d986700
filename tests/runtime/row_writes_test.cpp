// Tests of the contiguous runs in which optimizer steps write rows, and of each rank's count of writes.

#include "runtime/runs.h"

#include <gmock/gmock.h>

#include "runtime/row_writes.h"

namespace fsdp::runtime {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kShard = 1, kGradients = 2, kMoments = 3;

// Returns an extent of `numel` elements at `first` of the shard, with a gradient and one state that have the same
// layout.
Extent extent_at(int64_t first, int64_t numel, KernelKey kernel_key = {}) {
  return {true, kernel_key, numel, {{kShard, first}, {kGradients, first}, {kMoments, first}}};
}

// A function makes the Run, because testing::Test has a member called Run.
Run run(size_t first, size_t count, int64_t numel) { return {first, count, numel}; }

using AllRuns = std::vector<Run>;

TEST(Runs, NeighboursShareARunAcrossThePaddingBetweenThem) {
  EXPECT_THAT(plan_runs(std::vector{extent_at(0, 10), extent_at(16, 5), extent_at(32, 16)}),
              ElementsAre(run(0, 3, 48)));
  EXPECT_THAT(plan_runs({}), IsEmpty());
  EXPECT_THAT(plan_runs(std::vector<Extent>(3)), IsEmpty());
}

TEST(Runs, OfThreeExtentsSideBySideBeginWhereOneLiesOrIsTreatedOtherwise) {
  using Extents = std::vector<Extent>;
  struct Case {
    const char* change;
    std::function<void(Extents&)> make;
    AllRuns runs;
  };
  const auto each = [](const std::function<void(Extent&)>& change) {
    return [=](Extents& extents) {
      for (auto& extent : extents) change(extent);
    };
  };
  const AllRuns all{run(0, 3, 24)}, three{run(0, 1, 8), run(1, 1, 8), run(2, 1, 8)};
  const std::vector<Case> cases{
      {"rows elsewhere at the same distances", each([](Extent& extent) { extent.locations[0].first += 64; }), all},
      {"memory of their own", each([](Extent& extent) { extent.locations[1].block = 0; }), three},
      {"another kernel key",
       [](Extents& e) { e[1].kernel_key = e[2].kernel_key = {1, 0, 0}; },
       {run(0, 1, 8), run(1, 2, 16)}},
      {"rows left alone", [](Extents& e) { e[1] = Extent(); }, {run(0, 1, 8), run(2, 1, 8)}},
      {"a gradient in another block", [](Extents& e) { e[1].locations[1].block = 9; }, three},
      {"a gradient at another distance", [](Extents& e) { e[1].locations[1].first = 100; }, three},
      {"a state in another block", [](Extents& e) { e[1].locations[2].block = 9; }, three},
      {"a state less", [](Extents& e) { e[1].locations.pop_back(); }, three}};
  for (const auto& it : cases) {
    Extents extents{extent_at(0, 8), extent_at(8, 8), extent_at(16, 8)};
    it.make(extents);
    EXPECT_EQ(plan_runs(extents), it.runs) << it.change;
  }
}

using Slots = std::vector<std::optional<size_t>>;
constexpr std::nullopt_t kAll = std::nullopt;

WriteCounts counts_of(const Slots& writes) {
  WriteCounts counts;
  for (const auto& slot : writes) counts.note(slot);
  return counts;
}

// A rank that has rows of some parameters must count as many updates as a rank that has rows of all.
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
  for (const auto& [writes, count] : counts) EXPECT_EQ(counts_of(writes).tell(), count) << writes.size();
}

TEST(WriteCounts, TakeWhatIsWrittenAfterTheyWereToldForAnotherUpdate) {
  auto counts = counts_of({0, 1});
  EXPECT_EQ(counts.tell(), 1);
  EXPECT_EQ(counts.tell(), 1);
  counts.note(1);
  EXPECT_EQ(counts.total(), 2);
  EXPECT_EQ(counts.tell(), 2);
}

}  // namespace
}  // namespace fsdp::runtime
