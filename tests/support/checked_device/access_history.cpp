#include "support/checked_device/access_history.h"

#include <algorithm>

namespace fsdp::test::checked {

// From here on no cell goes across `at`.
void AccessHistory::split(size_t at) {
  auto next = cells_.lower_bound(at);
  if (next == cells_.begin()) return;
  auto& cell = std::prev(next)->second;
  if (cell.end <= at) return;
  cells_.emplace_hint(next, at, cell);
  cell.end = at;
}

void AccessHistory::note(size_t begin, size_t end, const Access& access, const Visit& visit) {
  if (begin == end) return;
  split(begin);
  split(end);
  const auto first = cells_.lower_bound(begin), last = cells_.lower_bound(end);
  for (auto cell = first; cell != last; ++cell) {
    if (cell->second.write) visit(*cell->second.write);
    if (access.writes)
      for (const auto& read : cell->second.reads) visit(read);
  }
  if (!access.writes) return note_read(begin, end, access);
  cells_.erase(first, last);
  cells_.emplace(begin, Cell{end, access, {}});
}

void AccessHistory::note_read(size_t begin, size_t end, const Access& access) {
  auto cell = cells_.lower_bound(begin);
  for (size_t at = begin; at < end; ++cell) {
    if (cell == cells_.end() || cell->first > at) {
      const size_t gap_end = cell == cells_.end() ? end : std::min(end, cell->first);
      cell = cells_.emplace_hint(cell, at, Cell{gap_end, std::nullopt, {}});
    }
    auto& reads = cell->second.reads;
    std::erase_if(reads, [&](const Access& read) { return read.stamp.stream == access.stamp.stream; });
    reads.push_back(access);
    at = cell->second.end;
  }
}

void AccessHistory::visit_all(const Visit& visit) const {
  for (const auto& [begin, cell] : cells_) {
    if (cell.write) visit(*cell.write);
    for (const auto& read : cell.reads) visit(read);
  }
}

}  // namespace fsdp::test::checked
