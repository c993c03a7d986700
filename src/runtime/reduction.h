#pragma once
/// \file
/// From whole gradients to those of this rank's rows: collectives.

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
    /// Scale that readers must still apply to the rows.
    double scale = 1;
  };

  virtual ~Reduction() = default;
  /// Starts it: the outputs get this rank's slices of the sums, those of `rows` times `scale`; `counts` may be scaled,
  /// too. `with`: for `rows` in place of the shard axis's own reduce_scatter, unless it is none. Collective.
  virtual Started start(std::vector<ReducePlane> rows, ReducePlane counts, double scale, Tag tag,
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
  /// Gets this rank's slice of each plane's reduced gradients, before they are handed out.
  std::function<void(const at::Tensor& rows)> hook = {};
};

/// Whole gradients are multiplied by it before they are summed in `dtype`, which is no part of the result: a power of
/// two, other than 1 for fp16 alone, whose largest number is 65504. Half of the division (in powers) comes before the
/// sum and half after, so that neither the sum nor what is summed leaves fp16's range (as in FSDP1).
double factor_before_sum(c10::ScalarType dtype, const Placement& placement);

/// What a rank gives to a reduction.
struct Contribution {
  /// Of each plane, the whole gradients where autograd left them, with what was kept of this rank's rows.
  std::vector<std::vector<Piece>> planes = {};
  /// Of each parameter, whether there is a gradient, and whether its plane takes part.
  std::vector<uint8_t> votes = {}, takes_part = {};
  std::vector<memory::Charge> charges = {};  ///< of the whole gradients
  /// The reductions within the replica whose sum has joined.
  int joined = 0;
  /// What gradients were multiplied by; see factor_before_sum.
  double factor = 1;
};

/// This rank's slice of the sum of one plane. It lies as the flat shard does and is zero between parameters: optimizers
/// walk through both at once.
struct ReducedPlane {
  size_t flat = 0;
  memory::FlatPart rows;
};

/// In flight until its work was waited for.
struct ReductionInFlight {
  std::vector<memory::Charge> charges;  // of the whole gradients
  std::vector<ReducedPlane> planes;
  Reduction::Started started;
  /// Of each parameter, whether this rank gave a gradient; how many ranks did, times what sums are scaled by.
  std::vector<uint8_t> own_votes, takes_part;
  at::Tensor counts;
  bool is_within_replica = false;
  int joined = 0;  // see Contribution

  /// Once the work was waited for: of each parameter, whether some rank gave a gradient. The host waits for a device
  /// only where this rank alone does not know.
  std::vector<uint8_t> votes() const;
  /// Once the work was waited for: the planes are the sums, as the calling thread's stream reads them.
  void finish();
};

/// Starts the sums of several planes of one device, which are divided once they are over all axes. How many ranks gave
/// a gradient travels along as one more plane: a parameter that some rank used gets a gradient on every rank. `planes`
/// get this rank's slices; at least one. `writes`: how often the rows were written, which replicas compare. Collective.
ReductionInFlight reduce(const Reduction& reduction, const GroupIdentity& group, std::string subject,
                         std::vector<ReducedPlane> planes, Contribution contribution, const ReductionPolicy& policy,
                         uint32_t writes);

}  // namespace fsdp::runtime
