#include "comm/failure/blame.h"

#include <sys/mman.h>

#include <cstdlib>
#include <set>

namespace fsdp {
// Ranks have an entry each, which is whom they blame + 1, so that zeros blame nobody.
Descriptor make_blame_board() { return Descriptor(memfd_create("fsdp-blame", 0)); }

void blame(int rank, int whom) {
  const char* board = std::getenv(kBlameVariable);
  if (board == nullptr || rank < 0) return;
  const int entry = whom + 1;
  static_cast<void>(!pwrite(std::atoi(board), &entry, sizeof entry, static_cast<off_t>(sizeof entry) * rank));
}

int blamed_by(const Descriptor& board, int rank) {
  int entry = 0;
  const auto place = static_cast<off_t>(sizeof entry) * rank;
  return pread(board.number(), &entry, sizeof entry, place) == sizeof entry ? entry - 1 : -1;
}

int find_first_failed(int rank, const std::function<int(int)>& blamed, const std::function<bool(int)>& failed) {
  std::set<int> seen{rank};
  for (int next = blamed(rank); next >= 0 && failed(next); next = blamed(rank)) {
    if (!seen.insert(next).second) break;
    rank = next;
  }
  return rank;
}

}  // namespace fsdp
