#pragma once
/// \file
/// The collectives that turn unsharded gradients into the gradients of this rank's rows.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/flat_params.h"
#include "runtime/group_policy.h"

namespace fsdp::runtime {

/// Starts to sum over the ranks of the shard axis in their order and, if it goes `over_replicas`, then over those of
/// each replicate axis in theirs. The outputs receive this rank's slices of the sums. Over the shard axis alone those
/// of `rows` are multiplied by `scale`, and `counts` may be; after replicas whoever reads the rows does. If there is a
/// `with`, it reduces `rows` in place of the shard axis's own reduce_scatter. Returns what is to be waited for, in this
/// order. Collective.
std::vector<std::shared_ptr<Work>> start_sum(const Placement& placement, bool over_replicas,
                                             std::vector<ReducePlane> rows, ReducePlane counts, double scale, Tag tag,
                                             const ReduceScatter& with);

/// The factor by which unsharded gradients are multiplied before they are summed in `dtype`, and which is taken out of
/// the sum again: a power of two for fp16, whose largest number is 65504, 1 for others (as in FSDP1).
double factor_before_sum(c10::ScalarType dtype, const Placement& placement);

/// This rank's slice of a plane's sum, laid out as the flat shard and zero between parameters, for optimizers' walks.
struct ReducedPlane {
  size_t flat = 0;
  memory::FlatPart rows;
};

/// The reduction of one bucket's gradients, in flight from `start` until its works were waited for.
struct Reduction {
  std::vector<ReducedPlane> planes = {};
  std::vector<uint8_t> votes = {};           ///< for each parameter, whether it has a gradient on this rank
  bool lacks_gradients = false;              ///< of some parameter in these planes
  std::vector<memory::Charge> charges = {};  ///< the bytes of the unsharded gradients
  /// How many reductions within the replica have joined their sums to this one.
  int joined = 0;
  double factor = 1;
  bool is_within_replica = false;
  std::vector<std::shared_ptr<Work>> works = {};
  double scale = 1;  ///< that is left to be applied to the sums
  /// For each parameter, how many ranks have a gradient, times the scale of the sums; undefined on one rank.
  at::Tensor counts = {};

  /// Sums `gradients`, for each plane the unsharded ones where autograd left them and the sums that were kept for this
  /// rank's rows. Sums are divided once, after the last axis; see RankState::share_with_data. One more plane counts the
  /// ranks that have a gradient, so that a parameter that any rank used gets a gradient on every rank. Collective.
  void start(const Placement& placement, const ReductionPolicy& policy, double share_with_data,
             std::vector<std::vector<Piece>> gradients, Tag tag);
  /// For each parameter, whether any rank has a gradient. The host waits for a device only where this rank has none.
  std::vector<uint8_t> votes_of_all() const;
  /// Applies the remaining scale, once the works were waited for, so that the calling thread's stream reads the sums.
  void finish();
};

/// What reductions of one bucket over the shard axis alone have summed, until one goes over the replicas too. It joins
/// this rank's own gradients before the next reduction.
struct PartialSum {
  int reductions = 0;                            // whose sum it is; 0: there is none
  std::vector<uint8_t> votes = {};               // by parameter: whether some rank of the replica had a gradient
  std::map<size_t, memory::HandedOn> rows = {};  // by plane: this rank's slice

  bool has(size_t parameter) const { return reductions > 0 && votes[parameter] != 0; }
};

/// Adds the pieces of one parameter to those of its flat tensor. `gradient`: the whole one, flat, of which element 0 is
/// number `first` of the flat tensor; undefined if there is none. `rows`: what was kept of this rank's rows, of which
/// element 0 is number `first_of_rows`; it is changed, the gradient is not, which others may have. Undefined: nothing.
void add_pieces(std::vector<Piece>& pieces, int64_t first, const at::Tensor& gradient, int64_t first_of_rows,
                const at::Tensor& rows);

}  // namespace fsdp::runtime
