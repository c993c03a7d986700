#pragma once
/// \file
/// What a step will cost, before the first one.

#include <fsdp/group.h>
#include <fsdp/options.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace fsdp {

/// The groups that fully_shard made, and for a step what a rank holds and moves at most, by the formulas of
/// docs/strategies.md: bytes, each rank taken for a host of its own unless all share memory. Activations are not in it.
struct Explanation {
  struct OfGroup {
    std::string name;  ///< as Group::name()
    Strategy strategy = Strategy::kFullShard;
    int64_t parameters = 0;   ///< elements
    int64_t whole_bytes = 0;  ///< of its whole parameters, with padding
    int64_t rows_bytes = 0;   ///< of this rank's rows, with padding
  };

  int world_size = 1, shards = 1, replicas = 1;
  bool shares_memory = false;  ///< whole parameters lie once for all ranks: gathers move nothing
  std::vector<OfGroup> groups;
  int64_t parameters = 0;
  /// Held at most. `optimizer`: of AdamW.
  int64_t rows = 0, whole = 0, gradient = 0, optimizer = 0;
  /// Of a step with one backward: how many, and what this rank sends. Gathers, at most.
  int64_t gathers = 0, gathers_bytes = 0;
  int64_t reduce_scatters = 0, reduce_scatters_bytes = 0;
  int64_t all_reduces = 0, all_reduces_bytes = 0;
};

/// Explains the groups under a model. Not collective; any thread, between steps.
///
///     if (fsdp::rank() == 0) std::cout << fsdp::explain(model);
Explanation explain(const Group& model);

/// A table of the groups, and a line each for what is held and what is moved.
std::ostream& operator<<(std::ostream& out, const Explanation& explanation);

}  // namespace fsdp
