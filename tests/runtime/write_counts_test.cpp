// How often every rank has written rows, counted alike by ranks that have rows of all parameters and of some.

#include "runtime/write_counts.h"

#include <gtest/gtest.h>

namespace fsdp::runtime {
namespace {

constexpr std::nullopt_t kAll = std::nullopt;

WriteCounts counts_of(const std::vector<std::optional<size_t>>& writes) {
  WriteCounts counts;
  for (const auto& slot : writes) counts.note(slot);
  return counts;
}

TEST(WriteCounts, AnUpdateOfAllSlotsAtOnceCountsOnce) {
  EXPECT_EQ(counts_of({}).take(), 0);
  EXPECT_EQ(counts_of({kAll}).take(), 1);
  EXPECT_EQ(counts_of({kAll, kAll}).take(), 2);
}

TEST(WriteCounts, AnUpdateSlotBySlotCountsOnceOnRanksWithRowsOfAllParametersAndOfSome) {
  EXPECT_EQ(counts_of({0, 1, 2}).take(), 1);
  EXPECT_EQ(counts_of({1}).take(), 1);
  EXPECT_EQ(counts_of({0, 1, 2, 2, 1, 0}).take(), 2);
  EXPECT_EQ(counts_of({2, 2}).take(), 2);
}

TEST(WriteCounts, UpdatesOfBothKindsAddUp) {
  EXPECT_EQ(counts_of({kAll, 0, 1, kAll}).take(), 3);
  EXPECT_EQ(counts_of({1, kAll, kAll}).take(), 3);
}

TEST(WriteCounts, BeginAgainAfterTheyWereTaken) {
  auto counts = counts_of({0, 1});
  EXPECT_EQ(counts.take(), 1);
  EXPECT_EQ(counts.take(), 0);
  counts.note(1);
  EXPECT_EQ(counts.take(), 1);
  EXPECT_EQ(counts.total(), 2);
}

TEST(WriteCounts, AreToldAgainWhereTheyDidNotReachTheOtherRanks) {
  auto counts = counts_of({kAll});
  counts.give_back(counts.take());
  EXPECT_EQ(counts.take(), 1);
  EXPECT_EQ(counts.total(), 1);
}

}  // namespace
}  // namespace fsdp::runtime
