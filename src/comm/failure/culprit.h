#pragma once
/// \file
/// Who keeps a rank waiting. Pure functions.

#include <span>

namespace fsdp {

/// What one rank does at the moment.
struct Waiting {
  /// The rank that it waits for; -1: it does not wait.
  int for_rank = -1;
  /// It looked at what it waits for a moment ago, and found nothing. A rank that is stopped waits without looking.
  bool is_awake = false;
};

/// Whether every rank waits and is awake: then nobody is left to do what they wait for.
bool all_wait(std::span<const Waiting> ranks);

/// Follows who waits for whom from `rank`, which waits, to the first one that does not wait or is not awake; the one
/// that `rank` waits for if there is none.
int find_culprit(std::span<const Waiting> ranks, int rank);

}  // namespace fsdp
