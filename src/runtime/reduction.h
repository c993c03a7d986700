#pragma once
/// \file
/// The collectives that reduce unsharded gradients to the gradients of this rank's rows.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/flat_params.h"
#include "runtime/group_policy.h"

namespace fsdp::runtime {

/// Starts to sum over the ranks of the shard axis, in rank order, and then, if `over_replicas`, over the ranks of each
/// replicate axis, in rank order. The outputs receive this rank's slices of the sums.
///
/// If the sum is over the shard axis alone, the outputs of `rows` are multiplied by `scale`, and the output of `counts`
/// may be multiplied too. If the sum goes over replicas, nothing is multiplied, and the caller must apply the scale. If
/// `with` is set, it reduces `rows` in place of the shard axis's own reduce_scatter. Returns the works that the caller
/// must wait for, in this order. Collective.
std::vector<std::shared_ptr<Work>> start_sum(const Placement& placement, bool over_replicas,
                                             std::vector<ReducePlane> rows, ReducePlane counts, double scale, Tag tag,
                                             const ReduceScatter& with);

/// Returns the factor by which unsharded gradients are multiplied before they are summed in `dtype`; the scale of the
/// sum contains its inverse. For fp16, whose largest number is 65504, the factor is a power of two; for other dtypes it
/// is 1 (as in FSDP1).
double factor_before_sum(c10::ScalarType dtype, const Placement& placement);

/// This rank's slice of a plane's summed gradients. It is laid out like the flat shard and is zero between parameters,
/// so that one kernel call of an optimizer can go through it.
struct ReducedPlane {
  size_t flat = 0;  // index of the plane in ShardedParams::flats()
  memory::FlatPart rows;
};

/// The reduction of one bucket's gradients. It is in flight from `start` until its works have been waited for.
struct Reduction {
  std::vector<ReducedPlane> planes = {};
  std::vector<uint8_t> votes = {};           ///< 1 for each parameter that has a gradient on this rank, otherwise 0
  bool lacks_gradients = false;              ///< true if some parameter in these planes has no gradient on this rank
  std::vector<memory::Charge> charges = {};  ///< the bytes of the unsharded gradients
  /// Number of earlier reductions over the shard axis alone whose sums were added to this rank's gradients.
  int joined = 0;
  double factor = 1;
  bool is_within_replica = false;
  std::vector<std::shared_ptr<Work>> works = {};
  double scale = 1;  ///< the factor that `finish` applies to the sums
  /// For each parameter, the number of ranks that have a gradient, times the scale of the sums; undefined if there is
  /// only one rank.
  at::Tensor counts = {};

  /// Starts to sum `gradients`. For each plane these are the unsharded gradients, in the memory in which autograd left
  /// them, and the sums that earlier reductions kept for this rank's rows. The sums are divided once, after the last
  /// axis; see RankState::share_with_data. One more plane counts the ranks that have a gradient, so that a parameter
  /// that any rank used gets a gradient on every rank. Collective.
  void start(const Placement& placement, const ReductionPolicy& policy, double share_with_data,
             std::vector<std::vector<Piece>> gradients, Tag tag);
  /// Returns for each parameter whether any rank has a gradient. The host has to wait for the device only if this rank
  /// lacks a gradient.
  std::vector<uint8_t> votes_of_all() const;
  /// Applies `scale` to the sums on the calling thread's current stream. The works must have been waited for.
  void finish();
};

/// The sum of one bucket's reductions over the shard axis alone, which the group keeps until a reduction goes over the
/// replicas too. The group adds it to this rank's gradients before the next reduction.
struct PartialSum {
  int reductions = 0;                            // number of reductions in the sum; 0 if there is no sum
  std::vector<uint8_t> votes = {};               // 1 for each parameter that has a gradient on some rank of the replica
  std::map<size_t, memory::HandedOn> rows = {};  // this rank's slice, by the plane's index
};

}  // namespace fsdp::runtime
