#pragma once
/// \file
/// A param group's placement over a shard axis and a replicate axis.

#include <fsdp/process_group.h>

#include <vector>

#include "api/group_view.h"

namespace fsdp::test {

/// Number of ranks along each axis.
struct Axes {
  int shards = 1, replicas = 1;
  int ranks() const { return shards * replicas; }
};

/// Returns a placement over the default process group: rank r is rank r % shards of replica r / shards. Collective.
inline runtime::Placement placement_over(Axes axes) {
  std::vector<std::vector<int>> shard(static_cast<size_t>(axes.replicas)), replicate(static_cast<size_t>(axes.shards));
  for (int rank = 0; rank < axes.ranks(); ++rank) {
    shard[static_cast<size_t>(rank / axes.shards)].push_back(rank);
    replicate[static_cast<size_t>(rank % axes.shards)].push_back(rank);
  }
  const auto all = default_process_group();
  const auto rows = all->split(shard, "shard");
  return {all, rows, {all->split(replicate, "replicate")}};
}

/// Makes each block of the net a param group; the other parameters belong to the root's group.
template <class Net>
Group shard_blocks_over(const runtime::Placement& placement, Net& net, const FullyShardOptions& options = {}) {
  for (auto& block : *net.blocks) shard_over(placement, module_tree(*block), options);
  return shard_over(placement, module_tree(net), options);
}

}  // namespace fsdp::test
