#pragma once
/// \file
/// What ranks say of themselves when they are asked whether all of them wait for each other. Pure functions.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/failure/verdict.h"

namespace fsdp {

/// One rank's answer.
struct Standing {
  /// It waits until `peer` begins the operation with this number in this order.
  struct Wait {
    std::string order;
    uint64_t number = 0;
    int peer = -1;
    /// Its own operation with this number.
    std::string operation;

    auto fields() { return std::tie(number, peer, order, operation); }
  };

  /// See Activity::moves.
  uint64_t moves = 0;
  /// For what its threads wait; empty if one of them does not, or if one waits for data that is on its way.
  std::vector<Wait> waits;
  /// How many operations it has begun in each order.
  std::map<std::string, uint64_t> begun;
  /// Its last operations.
  std::string operations;

  auto fields() { return std::tie(moves, waits, begun, operations); }
};

/// The verdict if all ranks wait in vain: each of them for an operation that another one has not begun, and will not
/// begin because it waits as well. `before` and `now`: every rank's answers to two questions, of which the second was
/// asked when all answers to the first were there, so a rank that did not move in between stood still at that moment,
/// together with all others.
std::optional<Verdict> find_deadlock(const Ranks& ranks, std::span<const Standing> before,
                                     std::span<const Standing> now);

}  // namespace fsdp
