#pragma once
/// \file
/// Who keeps a rank waiting. Pure functions.

#include <span>

namespace fsdp::shm {

/// What one rank does at the moment.
struct Waiting {
  /// The rank that it waits for; -1: it does not wait.
  int for_rank = -1;
  /// It looked at what it waits for a moment ago. A rank that is stopped waits without looking.
  bool is_awake = false;
};

struct Culprit {
  int rank = -1;
  /// The ranks wait for each other, and will for ever; `rank` is the one that the asker waits for.
  bool is_deadlock = false;
};

/// Follows who waits for whom from `rank`, which waits, to the first one that does not wait or is not awake.
Culprit find_culprit(std::span<const Waiting> ranks, int rank);

}  // namespace fsdp::shm
