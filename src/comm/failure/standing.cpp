#include "comm/failure/standing.h"

#include <algorithm>

#include "comm/core/text.h"
#include "comm/failure/culprit.h"

namespace fsdp {
namespace {

bool waits_in_vain(const Standing& standing, std::span<const Standing> ranks) {
  return std::all_of(standing.waits.begin(), standing.waits.end(), [&](const Standing::Wait& wait) {
    const auto& begun = ranks[static_cast<size_t>(wait.peer)].begun;
    const auto found = begun.find(wait.order);
    return found == begun.end() || found->second < wait.number;
  });
}

}  // namespace

std::optional<Verdict> find_deadlock(const Ranks& ranks, std::span<const Standing> before,
                                     std::span<const Standing> now) {
  std::vector<Waiting> waiting;
  for (size_t rank = 0; rank < now.size(); ++rank) {
    const auto& standing = now[rank];
    const bool stands = standing.moves == before[rank].moves && waits_in_vain(standing, now);
    waiting.push_back({standing.waits.empty() ? -1 : standing.waits.front().peer, stands});
  }
  if (!all_wait(waiting)) return std::nullopt;
  const auto peer = static_cast<size_t>(waiting.front().for_rank);
  std::string last = " Last operations:";
  for (size_t rank = 0; rank < now.size(); ++rank)
    last += str_cat(rank == 0 ? " " : "; ", "rank ", ranks.name_of(static_cast<int>(rank)), ": ", now[rank].operations);
  return wait_for_each_other(ranks, 0, now[0].waits.front().operation, static_cast<int>(peer),
                             now[peer].waits.front().operation, last + '.');
}

}  // namespace fsdp
