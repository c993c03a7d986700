#include "comm/shm/culprit.h"

namespace fsdp::shm {

Culprit find_culprit(std::span<const Waiting> ranks, int rank) {
  int current = ranks[rank].for_rank;
  for (size_t steps = 0; steps < ranks.size(); ++steps) {
    const auto& waiting = ranks[current];
    if (waiting.for_rank < 0 || !waiting.is_awake) return {current, false};
    current = waiting.for_rank;
  }
  return {ranks[rank].for_rank, true};
}

}  // namespace fsdp::shm
