#pragma once
/// \file
/// Which ranks hold what of a group.

#include <fsdp/options.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/placement.h"

namespace fsdp {

namespace runtime {
struct GroupPolicy;
class ParamGroup;
}  // namespace runtime

struct AxisRoles {
  /// The rows lie on its ranks; none: every rank has all of them.
  std::optional<std::string> shard = std::nullopt;
  /// Over them gradients of rows are summed, the first one first.
  std::vector<std::string> replicate = {};
  bool operator==(const AxisRoles&) const = default;
};

/// What the axes of a mesh are to a strategy. One axis is what the strategy makes of its ranks, whatever its name,
/// unless that is "replicate"; two are named "replicate" and "shard", in any order. kReplicate shards over none: it
/// sums over "shard", then over "replicate", as the other strategies do. Pure; throws UsageError, which begins with
/// `where`, for other axes and for a strategy that contradicts them.
AxisRoles choose_axes(Strategy strategy, const std::vector<std::string>& axes, std::string_view where);

/// "kFullShard over 4 ranks", with replicas "kFullShard over 2 x 4 ranks".
std::string describe(Strategy strategy, int replicas, int shards);

/// The placement that the options ask for. Collective where it has several axes, whose ranks compare it before it is
/// made. Throws UsageError for a mesh beside a process group, for a mesh that is a part of another one along two axes,
/// and what choose_axes throws.
runtime::Placement choose_placement(const FullyShardOptions& options);

/// What the strategy decides of how a group is gathered and freed; other settings stay.
void apply_strategy(Strategy strategy, runtime::GroupPolicy& policy);

Strategy strategy_of(const runtime::ParamGroup& group);

}  // namespace fsdp
