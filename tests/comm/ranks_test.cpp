#include "comm/core/ranks.h"

#include <gtest/gtest.h>

#include <vector>

namespace fsdp::test {
namespace {

TEST(Ranks, OfASubgroupAreNamedByTheirGlobalNumbers) {
  struct Named {
    Ranks ranks;
    int own, of_rank_0;
    std::string where;
  };
  const std::vector<Named> groups{
      {{1, 4}, 1, 0, "[fsdp rank 1/4] step: "},
      {Ranks{5, 8}.in_subgroup("pairs", {2, 5}), 5, 2, "[fsdp rank 5/8, 'pairs' 1/2] step: "},
      {Ranks{5, 8}.in_subgroup("upper", {3, 5, 7}).in_subgroup("outer", {5, 7}), 5, 5,
       "[fsdp rank 5/8, 'outer' 0/2] step: "},
      {Ranks{1, 2}.in_subgroup("again", {0, 1}), 1, 0, "[fsdp rank 1/2, 'again' 1/2] step: "}};
  for (const auto& [ranks, own, of_rank_0, where] : groups) {
    EXPECT_EQ(ranks.name(), own);
    EXPECT_EQ(ranks.name_of(0), of_rank_0);
    EXPECT_EQ(ranks.where("step"), where);
  }
}

}  // namespace
}  // namespace fsdp::test
