#pragma once
/// \file
/// What a step will cost, before the first one.

#include <fsdp/group.h>
#include <fsdp/options.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup observing
/// \{

/// The groups that fully_shard made, and for a step what a rank holds and moves at most, by the formulas of
/// docs/choosing.md: bytes, each rank taken for a host of its own unless all share memory. Activations are not in it.
struct Explanation {
  /// One group.
  struct OfGroup {
    std::string name;                          ///< as Group::name()
    Strategy strategy = Strategy::kFullShard;  ///< what of it is sharded
    int64_t parameters = 0;                    ///< elements
    int64_t whole_bytes = 0;                   ///< of its whole parameters, with padding
    int64_t rows_bytes = 0;                    ///< of this rank's rows, with padding
  };

  int world_size = 1;           ///< of the process group that the model was sharded over
  int shards = 1;               ///< ranks that the outermost group's rows are shared out over
  int replicas = 1;             ///< how often each of these rows is there
  bool shares_memory = false;   ///< whole parameters lie once for all ranks: gathers move nothing
  std::vector<OfGroup> groups;  ///< all of the model, the outermost first
  int64_t parameters = 0;       ///< elements of all groups

  int64_t rows = 0;       ///< bytes held: of this rank's rows
  int64_t whole = 0;      ///< bytes held at most: of whole parameters
  int64_t gradient = 0;   ///< bytes held at most: of whole gradients and of gradients of rows
  int64_t optimizer = 0;  ///< bytes held: of the state of AdamW

  int64_t gathers = 0;                ///< in a step with one backward, at most
  int64_t gathers_bytes = 0;          ///< that this rank sends in them
  int64_t reduce_scatters = 0;        ///< in a step with one backward
  int64_t reduce_scatters_bytes = 0;  ///< that this rank sends in them
  int64_t all_reduces = 0;            ///< over replicas, in a step with one backward
  int64_t all_reduces_bytes = 0;      ///< that this rank sends in them
};

/// Explains the groups under a model. Not collective; any thread, between steps.
///
///     if (fsdp::rank() == 0) std::cout << fsdp::explain(model);
Explanation explain(const Group& model);

/// A table of the groups, and a line each for what is held and what is moved.
std::ostream& operator<<(std::ostream& out, const Explanation& explanation);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
