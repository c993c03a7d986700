#pragma once
/// \file
/// Counts what a step costs one rank besides its data.

#include <fsdp/process_group.h>

#include <array>
#include <cstdint>
#include <vector>

#include "virtual_ranks.h"

namespace bench {

/// Counts of one rank. Steps are counted once their counts no longer change from step to step.
struct RankCounts {
  int64_t joining_calls = 0;  ///< number of calls to the store until the rank has joined
  int64_t calls = 0;          ///< number of calls to the store in a step
  int64_t headers = 0;        ///< number of messages in a step that describe an operation
  int64_t messages = 0;       ///< number of messages in a step that contain only data
  int64_t sent_bytes = 0;     ///< number of bytes sent in a step
  int64_t gathers = 0;        ///< number of all-gathers that a device's backend runs in a step
  int64_t reductions = 0;     ///< number of reductions that a device's backend runs in a step
  bool operator==(const RankCounts&) const = default;
};

inline constexpr std::array kRankNumbers{&RankCounts::joining_calls, &RankCounts::calls,      &RankCounts::headers,
                                         &RankCounts::messages,      &RankCounts::sent_bytes, &RankCounts::gathers,
                                         &RankCounts::reductions};

/// Trains the small model, which has `layers` blocks, over `group`, which this rank has just joined. There are
/// `replicas` replicas, each sharded over an equal part of the ranks. Returns the counts of this rank. Collective.
RankCounts count_steps(const std::shared_ptr<fsdp::ProcessGroup>& group, int64_t layers, int replicas, const Job& job,
                       const Counters& counters);

/// Returns the counts of `ranks` of a simulated job.
std::vector<RankCounts> simulate(const Job& job, int64_t layers, int replicas, const std::vector<int>& ranks);

}  // namespace bench
