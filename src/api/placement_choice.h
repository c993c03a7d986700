#pragma once
/// \file
/// Chooses a group's placement by strategy and mesh.

#include <fsdp/options.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/param_group.h"

namespace fsdp {

/// The axes of a mesh, by what a strategy uses them for.
struct AxisRoles {
  /// The axis over which rows are sharded; unset if every rank has all rows.
  std::optional<std::string> shard = std::nullopt;
  /// The axes over which gradients of rows are summed, in this order.
  std::vector<std::string> replicate = {};
  bool operator==(const AxisRoles&) const = default;
};

/// Returns what the strategy uses each axis of a mesh for. A mesh has one or two axes:
///
/// - One axis may have any name: it is the shard axis or, with kReplicate, the replicate axis. If it is named
///   "replicate", the strategy must be kReplicate.
/// - Two axes must be named "replicate" and "shard", in any order. kReplicate does not shard: it sums over "shard" and
///   then over "replicate", in the same order as the other strategies.
///
/// Throws UsageError, whose message begins with `where`, for other axes or another strategy.
AxisRoles choose_axes(Strategy strategy, const std::vector<std::string>& axes, std::string_view where);

/// Returns e.g. "kFullShard over 4 ranks", with replicas "kFullShard over 2 x 4 ranks".
std::string describe(Strategy strategy, int replicas, int shards);

/// Returns the placement that the options ask for. Collective if the placement has several axes: the ranks compare it
/// before they make it. Throws UsageError if the options have both a mesh and a process group, or a mesh of two axes
/// that has only some of the ranks that init_device_mesh laid out. Also throws what choose_axes throws.
runtime::Placement choose_placement(const FullyShardOptions& options);

/// Sets the fields of the policy that a strategy decides: when the group is gathered and freed, and whether buffers are
/// broadcast.
void apply_strategy(Strategy strategy, runtime::GroupPolicy& policy);

Strategy strategy_of(const runtime::ParamGroup& group);

}  // namespace fsdp
