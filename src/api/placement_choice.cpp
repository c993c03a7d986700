#include "api/placement_choice.h"

#include <algorithm>
#include <memory>

#include "comm/core/check.h"
#include "comm/group/attachment.h"
#include "comm/group/join.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

constexpr std::string_view kShard = "shard", kReplicate = "replicate";

// Returns the process group of all ranks of the mesh.
std::shared_ptr<ProcessGroup> ranks_of(const DeviceMesh& mesh, std::string_view where) {
  if (mesh.ndim() == 1) return mesh.process_group();
  const auto& all = mesh.laid_out();
  require(all->world_size() == mesh.size(), where, "FullyShardOptions::mesh: expected a mesh of all the ranks that ",
          "init_device_mesh laid out, found one with ", mesh.size(), " of ", all->world_size(),
          ". Split the process group, and make a mesh of this rank's part: init_device_mesh(shape, names, part)");
  return all;
}

// Returns the process group of this rank alone, which is the shard axis where every rank has all rows. Each call
// returns the same group, so that such placements are equal.
std::shared_ptr<ProcessGroup> alone_in(const std::shared_ptr<ProcessGroup>& ranks) {
  if (ranks->world_size() == 1) return ranks;
  const int own = ranks->global_ranks()[static_cast<size_t>(ranks->rank())];
  auto& alone = Attachment::of<runtime::RankState>(*ranks)->neighbours[{own}];
  if (!alone) alone = group_of_one(*ranks, std::string(kShard));
  return alone;
}

}  // namespace

AxisRoles choose_axes(Strategy strategy, const std::vector<std::string>& axes, std::string_view where) {
  const auto is_there = [&](std::string_view name) { return std::ranges::find(axes, name) != axes.end(); };
  const bool one = axes.size() == 1, two = axes.size() == 2 && is_there(kShard) && is_there(kReplicate);
  require(one || two, where, "FullyShardOptions::mesh: expected one axis, or the axes 'replicate' and 'shard', found '",
          str_join("', '", axes), "'. Take a part of the mesh: mesh[\"shard\"]");
  if (strategy == Strategy::kReplicate) {
    if (one) return {.replicate = axes};
    return {.replicate = {std::string(kShard), std::string(kReplicate)}};
  }
  require(two || axes.front() != kReplicate, where, "FullyShardOptions::mesh: its one axis is named 'replicate', but ",
          strategy, " shards. Name the axis 'shard', or set FullyShardOptions::strategy to Strategy::kReplicate");
  if (one) return {.shard = axes.front()};
  return {.shard = std::string(kShard), .replicate = {std::string(kReplicate)}};
}

std::string describe(Strategy strategy, int replicas, int shards) {
  return str_cat(strategy, " over ", replicas > 1 ? str_cat(replicas, " x ") : std::string(), shards, " ranks");
}

runtime::Placement choose_placement(const FullyShardOptions& options) {
  const auto& mesh = options.mesh;
  const auto given = options.process_group ? options.process_group : mesh ? mesh->laid_out() : default_process_group();
  const auto where = given->where("fully_shard");
  require(!mesh || !options.process_group, where,
          "FullyShardOptions has both a mesh and a process_group. Leave the process_group out: a mesh has its own");
  const auto roles =
      choose_axes(options.strategy, mesh ? mesh->mesh_dim_names() : std::vector{std::string(kShard)}, where);
  const auto ranks = mesh ? ranks_of(*mesh, where) : given;
  const auto along = [&](const std::string& axis) { return mesh ? mesh->process_group(axis) : ranks; };
  auto shard = roles.shard ? along(*roles.shard) : alone_in(ranks);
  runtime::Placement::Axes replicate;
  for (const auto& axis : roles.replicate) replicate.push_back(along(axis));
  if (roles.replicate.size() + (roles.shard ? 1 : 0) > 1) {
    const auto text = describe(options.strategy, ranks->world_size() / shard->world_size(), shard->world_size());
    ranks->communicator().barrier({"fully_shard: " + text, {}})->wait();
  }
  return {ranks, std::move(shard), std::move(replicate)};
}

void apply_strategy(Strategy strategy, runtime::GroupPolicy& policy) {
  const bool comes_and_goes = strategy == Strategy::kFullShard;
  policy.reshard_after_forward = comes_and_goes ? std::nullopt : std::optional(false);
  policy.reshard_after_backward = comes_and_goes;
  policy.free_when_written = comes_and_goes || strategy == Strategy::kShardGradOp;
  policy.broadcasts_buffers = policy.told_to_broadcast.value_or(strategy == Strategy::kReplicate);
}

Strategy strategy_of(const runtime::ParamGroup& group) {
  if (group.placement().shard().world_size() == 1) return Strategy::kReplicate;
  if (group.policy.reshard_after_backward) return Strategy::kFullShard;
  return group.policy.free_when_written ? Strategy::kShardGradOp : Strategy::kShardOptimizer;
}

}  // namespace fsdp
