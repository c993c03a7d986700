#pragma once
/// \file
/// Records which operations used each byte of a block: the last write, and the reads since then.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {

struct Access {
  Stamp stamp;
  bool writes = false;
  /// Number of times that the allocator had handed out the block before this access.
  int life = 0;
  /// Text that names the operation in messages.
  std::string place;
};

/// The accesses of one block. Neighbouring bytes with the same history share a cell.
class AccessHistory {
 public:
  using Visit = std::function<void(const Access&)>;

  /// Records an access to [begin, end), and calls `visit` with each earlier access to the same bytes that conflicts
  /// with it. Two accesses conflict if at least one of them writes.
  void note(size_t begin, size_t end, const Access& access, const Visit& visit) {
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
  /// Visits every access that may still conflict with a later one.
  void visit_all(const Visit& visit) const {
    for (const auto& [begin, cell] : cells_) {
      if (cell.write) visit(*cell.write);
      for (const auto& read : cell.reads) visit(read);
    }
  }
  void clear() { cells_.clear(); }

 private:
  struct Cell {
    size_t end = 0;
    std::optional<Access> write;
    std::vector<Access> reads;  // the last read of each stream
  };

  // Splits the cell that crosses `at`, if there is one.
  void split(size_t at) {
    auto next = cells_.lower_bound(at);
    if (next == cells_.begin()) return;
    auto& cell = std::prev(next)->second;
    if (cell.end <= at) return;
    cells_.emplace_hint(next, at, cell);
    cell.end = at;
  }
  void note_read(size_t begin, size_t end, const Access& access) {
    auto cell = cells_.lower_bound(begin);
    for (size_t at = begin; at < end; ++cell) {
      if (cell == cells_.end() || cell->first > at) {
        const size_t gap_end = cell == cells_.end() ? end : std::min(end, cell->first);
        cell = cells_.emplace_hint(cell, at, Cell{gap_end, std::nullopt, {}});
      }
      auto& reads = cell->second.reads;
      std::erase_if(reads, [&](const Access& read) {
        return read.stamp.epoch == access.stamp.epoch && read.stamp.stream == access.stamp.stream;
      });
      reads.push_back(access);
      at = cell->second.end;
    }
  }

  std::map<size_t, Cell> cells_;  // keyed by the cell's first byte
};

}  // namespace fsdp::test::checked
