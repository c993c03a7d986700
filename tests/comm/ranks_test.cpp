#include "comm/core/ranks.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

TEST(Ranks, OfAGroupThatWasNotSplitAreNamedByTheirNumbers) {
  const Ranks ranks{1, 4};
  EXPECT_EQ(ranks.name(), 1);
  EXPECT_EQ(ranks.name_of(3), 3);
  EXPECT_EQ(ranks.where("all_gather"), "[fsdp rank 1/4] all_gather: ");
}

TEST(Ranks, OfASubgroupAreNamedByTheirGlobalOnes) {
  const Ranks ranks = Ranks{5, 8}.in_subgroup("pairs", {2, 5});
  EXPECT_EQ(ranks.rank, 1);
  EXPECT_EQ(ranks.world_size, 2);
  EXPECT_EQ(ranks.name(), 5);
  EXPECT_EQ(ranks.name_of(0), 2);
  EXPECT_EQ(ranks.where("all_gather"), "[fsdp rank 5/8, 'pairs' 1/2] all_gather: ");
}

TEST(Ranks, OfASubgroupsSubgroupAreNamedByTheirGlobalOnes) {
  const Ranks ranks = Ranks{5, 8}.in_subgroup("upper", {3, 5, 7}).in_subgroup("outer", {5, 7});
  EXPECT_EQ(ranks.rank, 0);
  EXPECT_EQ(ranks.name_of(1), 7);
  EXPECT_EQ(ranks.where("barrier"), "[fsdp rank 5/8, 'outer' 0/2] barrier: ");
}

TEST(Ranks, OfASubgroupOfAllRanksAreNamedWithTheSubgroup) {
  const Ranks ranks = Ranks{1, 2}.in_subgroup("again", {0, 1});
  EXPECT_EQ(ranks.where("barrier"), "[fsdp rank 1/2, 'again' 1/2] barrier: ");
}

}  // namespace
}  // namespace fsdp
