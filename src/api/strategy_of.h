#pragma once
/// \file
/// The strategy that a group's policy comes to.

#include <fsdp/options.h>

#include "runtime/param_group.h"

namespace fsdp {

inline Strategy strategy_of(const runtime::ParamGroup& group) {
  if (group.placement().shard().world_size() == 1) return Strategy::kReplicate;
  if (group.policy.reshard_after_backward) return Strategy::kFullShard;
  return group.policy.free_when_written ? Strategy::kShardGradOp : Strategy::kShardOptimizer;
}

}  // namespace fsdp
