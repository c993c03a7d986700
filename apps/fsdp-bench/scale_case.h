#pragma once
/// \file
/// What a step costs one rank beside its data.

#include <fsdp/process_group.h>

#include <array>
#include <cstdint>
#include <vector>

#include "virtual_ranks.h"

namespace bench {

/// Numbers of one rank; those of a step are of one that is like all later ones.
struct RankCounts {
  int64_t joining_calls = 0;  ///< of the store
  int64_t calls = 0;          ///< of the store, in a step
  int64_t headers = 0;        ///< messages in a step that say what an operation is
  int64_t messages = 0;       ///< messages in a step that have data alone
  int64_t sent_bytes = 0;     ///< in a step
  int64_t gathers = 0;        ///< collectives of a device's backend in a step
  int64_t reductions = 0;     ///< the same
  int64_t peers = 0;          ///< that it has connections with
  bool operator==(const RankCounts&) const = default;
};

inline constexpr std::array kRankNumbers{&RankCounts::joining_calls, &RankCounts::calls,      &RankCounts::headers,
                                         &RankCounts::messages,      &RankCounts::sent_bytes, &RankCounts::gathers,
                                         &RankCounts::reductions,    &RankCounts::peers};

/// Trains the small model with `layers` blocks over the group, which this rank has just joined: `replicas` of them,
/// each sharded over the other ranks. Collective.
RankCounts count_steps(const std::shared_ptr<fsdp::ProcessGroup>& group, int64_t layers, int replicas, const Job& job,
                       const Counters& counters);

/// Those of the ranks of a job, simulated.
std::vector<RankCounts> simulate(const Job& job, int64_t layers, int replicas, const std::vector<int>& ranks);

}  // namespace bench
