#include "comm/failure/culprit.h"

#include <algorithm>

namespace fsdp {

bool all_wait(std::span<const Waiting> ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const Waiting& rank) { return rank.for_rank >= 0 && rank.is_awake; });
}

int find_culprit(std::span<const Waiting> ranks, int rank) {
  int current = ranks[rank].for_rank;
  for (size_t steps = 0; steps < ranks.size(); ++steps) {
    const auto& waiting = ranks[current];
    if (waiting.for_rank < 0 || !waiting.is_awake) return current;
    current = waiting.for_rank;
  }
  return ranks[rank].for_rank;
}

}  // namespace fsdp
