#pragma once
/// \file
/// Who used which bytes of a block: the last write of each, and the reads since.

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/checked_device/vector_clock.h"

namespace fsdp::test::checked {

struct Access {
  Stamp stamp;
  bool writes = false;
  /// How often the block had been handed out by then.
  int life = 0;
  /// What it was, for messages.
  std::string place;
};

/// Bytes that were used alike lie in one cell.
class AccessHistory {
 public:
  using Visit = std::function<void(const Access&)>;

  /// Notes an access of [begin, end); `visit` sees earlier ones of the same bytes where one of the two writes.
  void note(size_t begin, size_t end, const Access& access, const Visit& visit);
  /// All that may still conflict with something.
  void visit_all(const Visit& visit) const;
  void clear() { cells_.clear(); }

 private:
  struct Cell {
    size_t end = 0;
    std::optional<Access> write;
    std::vector<Access> reads;  // the last one of each stream
  };

  void split(size_t at);
  void note_read(size_t begin, size_t end, const Access& access);

  std::map<size_t, Cell> cells_;  // by their first byte
};

}  // namespace fsdp::test::checked
