#pragma once
/// \file
/// Estimate of the memory and traffic of a step, available before the first step.

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

/// Groups that fully_shard made, and upper bounds of the bytes that a rank holds and sends in a step, by the formulas
/// of docs/choosing.md. Unless all ranks share memory, every rank counts as a host of its own. Activations are not
/// included.
struct Explanation {
  /// One group.
  struct OfGroup {
    std::string name;                          ///< name of the group, see Group::name()
    Strategy strategy = Strategy::kFullShard;  ///< the group's strategy
    int64_t parameters = 0;                    ///< number of elements of the group's parameters
    int64_t whole_bytes = 0;                   ///< bytes of whole parameters, with padding
    int64_t rows_bytes = 0;                    ///< bytes of this rank's rows, with padding
  };

  int world_size = 1;           ///< number of ranks of the process group that the model is sharded over
  int shards = 1;               ///< number of ranks among which the outermost group's rows are divided
  int replicas = 1;             ///< number of copies of each row
  bool shares_memory = false;   ///< true if ranks share one copy of whole parameters, so gathers move nothing
  std::vector<OfGroup> groups;  ///< all groups of the model, outermost first
  int64_t parameters = 0;       ///< number of elements of the parameters of all groups

  int64_t rows = 0;       ///< bytes of this rank's rows
  int64_t whole = 0;      ///< bytes of whole parameters, at most
  int64_t gradient = 0;   ///< bytes of whole gradients and of rows' gradients, at most
  int64_t optimizer = 0;  ///< bytes of AdamW's state

  int64_t gathers = 0;                ///< number of all-gathers in a step with one backward, at most
  int64_t gathers_bytes = 0;          ///< bytes that this rank sends in these all-gathers
  int64_t reduce_scatters = 0;        ///< number of reduce-scatters in a step with one backward
  int64_t reduce_scatters_bytes = 0;  ///< bytes that this rank sends in these reduce-scatters
  int64_t all_reduces = 0;            ///< number of all-reduces over replicas in a step with one backward
  int64_t all_reduces_bytes = 0;      ///< bytes that this rank sends in these all-reduces
};

/// Estimates the cost of a step of the model. Not collective. Any thread may call this function between steps.
///
///     if (fsdp::rank() == 0) std::cout << fsdp::explain(model);
Explanation explain(const Group& model);

/// Prints a table of the groups, and one line each for memory and for traffic.
std::ostream& operator<<(std::ostream& out, const Explanation& explanation);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
