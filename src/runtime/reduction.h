#pragma once
/// \file
/// From the whole gradients of one flat buffer to those of this rank's rows: collectives.

#include <fsdp/group_collectives.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/byte_account.h"
#include "runtime/flat_params.h"
#include "runtime/group_identity.h"

namespace fsdp::runtime {

/// A way to sum what all ranks of a placement give.
class Reduction {
 public:
  struct Started {
    std::shared_ptr<Work> work;
    /// With which the rows are still to be multiplied, by who reads them.
    double scale = 1;
  };

  virtual ~Reduction() = default;
  /// Starts it: the outputs get this rank's slices of the sums, those of `rows` times `scale`; `counts` may be scaled,
  /// too. `with`: for `rows` in place of the shard axis's own reduce_scatter, unless it is none. Collective.
  virtual Started start(ReducePlane rows, ReducePlane counts, double scale, Tag tag,
                        const ReduceScatter& with) const = 0;
};

/// Sums over the ranks of the shard axis in their order, then over those of each replicate axis in theirs, and
/// multiplies once. `placement` outlives it.
std::unique_ptr<const Reduction> reduction_over(const Placement& placement);

/// Sums over the ranks of the shard axis alone, for a PartialSum. `placement` outlives it.
std::unique_ptr<const Reduction> reduction_within_replica(const Placement& placement);

/// How a group's gradients are reduced.
struct ReductionPolicy {
  /// What the sum is divided by; unset: the number of ranks of both axes.
  std::optional<double> divide_factor;
  /// Over the replicas too. Without it the sum over the shard axis is kept for the next reduction.
  bool all_reduces = true;
  /// Over the shard axis in place of the communicator's own reduce_scatter; none: that one.
  ReduceScatter custom_reduce_scatter = {};
  /// Gets this rank's slice of each flat buffer's reduced gradients, before they are handed out.
  std::function<void(const at::Tensor& rows)> hook = {};
};

/// With what whole gradients are multiplied before they are summed in `dtype`, which is no part of the result: a power
/// of two, other than 1 for fp16 alone, whose largest number is 65504. Half of the division (in powers) comes before
/// the sum and half after, so that neither the sum nor what is summed leaves fp16's range (as in FSDP1).
double factor_before_sum(c10::ScalarType dtype, const Placement& placement);

/// What a rank gives to the reduction of one flat buffer.
struct Contribution {
  /// The whole gradients where autograd left them, ascending, this rank's rows with what was kept of them.
  std::vector<Piece> pieces;
  /// Of each parameter of the buffer, whether there is one.
  std::vector<uint8_t> votes;
  std::vector<memory::Charge> charges;
  /// The reductions within the replica whose sum has joined.
  int joined = 0;
};

/// In flight until its work was waited for.
struct ReductionInFlight {
  size_t flat = 0;
  std::vector<memory::Charge> charges;  // of the whole gradients
  /// This rank's slice, which lies as the flat shard does and is zero between parameters: optimizers walk through both
  /// at once.
  memory::FlatPart output;
  Reduction::Started started;
  /// Of each parameter, whether this rank gave a gradient; how many ranks did, times what sums are scaled by.
  std::vector<uint8_t> own_votes;
  at::Tensor counts;
  bool is_within_replica = false;
  int joined = 0;  // see Contribution

  /// Once the work was waited for: of each parameter, whether some rank gave a gradient. The host waits for a device
  /// only where this rank alone does not know.
  std::vector<uint8_t> votes() const;
  /// Once the work was waited for: the output is the sum, as the calling thread's stream reads it.
  void finish();
};

/// Starts the sum, which is divided once it is over all axes. How many ranks gave a gradient travels along: a parameter that some rank used
/// gets a gradient on every rank. `output` gets this rank's slice. `writes`: how often the rows were written, which
/// replicas compare. Collective.
ReductionInFlight reduce(const Reduction& reduction, const GroupIdentity& group, std::string subject,
                         memory::FlatPart output, Contribution contribution, const ReductionPolicy& policy,
                         uint32_t writes);

}  // namespace fsdp::runtime
