// Tests which rank has which tokens, and which keys its queries meet, against the positions of single tokens.

#include "parallel/sequence_layout.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>

#include "comm/core/text.h"

namespace fsdp::parallel {
namespace {

using Pairs = std::map<std::pair<int64_t, int64_t>, int>;  // how often a query meets a key, keyed by positions

// Counts the pairs of the block's queries and the keys that they see. Padding has no position, and is left out of
// queries.
void meet(Pairs& met, const Block& block, const std::vector<int64_t>& queries, int64_t valid_queries,
          const std::vector<int64_t>& keys) {
  for (int64_t i = 0; i < block.queries; ++i)
    for (int64_t j = 0; j < block.keys && (!block.is_causal || j <= i); ++j)
      if (block.first_query + i < valid_queries)
        ++met[{queries[static_cast<size_t>(block.first_query + i)], keys[static_cast<size_t>(block.first_key + j)]}];
}

Pairs all_pairs(int64_t queries, int64_t keys, bool is_causal) {
  Pairs all;
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < (is_causal ? std::min(i + 1, keys) : keys); ++j) all[{i, j}] = 1;
  return all;
}

// Expects all pairs of queries of this layout with keys of a layout of `other` tokens that is split in the same way.
void expect_all_pairs(const SequenceLayout& queries, int64_t other, bool is_causal) {
  auto keys = queries;
  keys.length = other;
  const auto what = str_cat(queries.ranks, " ranks of ", queries.parts, ", ", queries.length, " and ", other,
                            queries.is_head_tail ? " head-tail" : "", is_causal ? " causal" : "");
  EXPECT_EQ(queries.own_length() % queries.parts, 0) << what;
  Pairs met, met_all;
  for (int64_t rank = 0; rank < queries.ranks; ++rank) {
    const auto own = queries.positions(rank);
    EXPECT_EQ(static_cast<int64_t>(own.size()), queries.own_length()) << what;
    for (int64_t source = 0; source < queries.ranks; ++source)
      if (const auto block = block_of(queries, keys, rank, source, is_causal))
        meet(met, *block, own, queries.valid_length(rank), keys.positions(source));
    std::vector<int64_t> all;
    for (int64_t i = 0; i < other; ++i) all.push_back(i);
    if (!queries.is_head_tail)
      for (const auto& block : blocks_of_all(queries, keys, rank, is_causal))
        meet(met_all, block, own, queries.valid_length(rank), all);
  }
  EXPECT_EQ(met, all_pairs(queries.length, other, is_causal)) << what;
  if (!queries.is_head_tail) EXPECT_EQ(met_all, all_pairs(queries.length, other, is_causal)) << what << ", gathered";
}

TEST(SequenceLayout, EveryQueryMeetsEveryKeyThatItSeesOnceAndNoOther) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks)
    for (int64_t length = ranks; length <= 4 * ranks + 3; ++length)
      for (const int64_t other : {length, length + 3})
        for (const bool is_head_tail : {false, true})
          for (const bool is_causal : {false, true}) {
            if (is_causal && other != length) continue;
            for (const int64_t parts : {1, 2, 3})
              expect_all_pairs({length, ranks, is_head_tail, parts}, other, is_causal);
          }
}

// The numbers are equal at each step, so that no rank waits for another one.
TEST(SequenceLayout, HeadTailGivesEveryRankAsManyPairsAtEachStepUnderACausalMask) {
  const SequenceLayout layout{48, 4, true};
  for (int64_t step = 0; step < 4; ++step)
    for (int64_t rank = 0; rank < 4; ++rank) {
      const auto block = block_of(layout, layout, rank, (rank + 4 - step) % 4, true);
      ASSERT_TRUE(block);
      EXPECT_EQ(block->is_causal ? block->queries * block->queries / 2 : block->queries * block->keys, 72);
    }
}

}  // namespace
}  // namespace fsdp::parallel
