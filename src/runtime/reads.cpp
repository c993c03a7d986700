// Decides, when groups are read, which others are gathered ahead and which are freed.

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {
namespace {

// Returns true if the group shows whole parameters. Only such a group is gathered ahead.
bool shows_whole(RankState& rank, GroupId id) FSDP_REQUIRES(rank.mutex) {
  const auto* group = rank.group(id);
  return group != nullptr && group->is_inside();
}

// Asks the system to read the files of the next two groups. The second of them is not gathered ahead yet, so its rows
// are in memory by the time its all-gather begins.
void read_files_ahead(RankState& rank, const ReadOrder& order) FSDP_REQUIRES(rank.mutex) {
  constexpr size_t kAhead = 2;
  for (GroupId id : order.ahead(kAhead))
    if (auto* group = rank.group(id))
      for (const auto& flat : group->flats())
        if (flat.is_on_disk()) flat.rows().buffer->read_ahead();
}

// Returns the groups to gather ahead if the user has set nothing: those that followed in the last pass. Besides the
// groups around them, at most two groups are in memory. Usually these are `group`, which is read now, and the next one.
// If the next two lie inside `group`, both are gathered ahead, unless other groups inside it are still in memory.
std::vector<GroupId> that_followed(RankState& rank, const ParamGroup& group, const ReadOrder& order, GroupId next)
    FSDP_REQUIRES(rank.mutex) {
  const auto ahead = order.ahead(2);
  const auto is_inside = [&](GroupId id) FSDP_REQUIRES(rank.mutex) {
    return rank.group(id) != nullptr && rank.tree.contains(group.id(), id);
  };
  if (ahead.size() < 2 || !std::ranges::all_of(ahead, is_inside)) return {next};
  const auto may_stay = [&](GroupId id) FSDP_REQUIRES(rank.mutex) {
    return id == group.id() || rank.group(id)->stays_after_forward() || !rank.tree.contains(group.id(), id) ||
           std::ranges::find(ahead, id) != ahead.end();
  };
  return std::ranges::all_of(rank.residents, may_stay) ? ahead : std::vector{next};
}

// Returns the groups to gather ahead: those that the user listed, or those that followed in the last pass.
std::vector<GroupId> predict(RankState& rank, const ParamGroup& group, bool in_backward) FSDP_REQUIRES(rank.mutex) {
  if (!group.scope || rank.group(group.scope->root) == nullptr) return {};
  if (group.summon_depth > 0) return {};  // reads inside summon_full_params may differ between ranks
  auto& orders = rank.reads.orders[group.scope->root];
  auto& order = in_backward ? orders.backward : orders.forward;
  const auto followed = order.note(group.id());
  if (rank.keeps_files) read_files_ahead(rank, order);
  const auto& limit = group.policy.max_prefetched_bytes;
  // Only as many groups are gathered ahead as fit into the limit. Groups around `group` do not count.
  const auto fits = [&, bytes = limit.value_or(0)](GroupId id) FSDP_REQUIRES(rank.mutex) mutable {
    if (limit && shows_whole(rank, id) && !rank.tree.contains(id, group.id())) bytes -= rank.group(id)->whole_bytes();
    return bytes >= 0;
  };
  auto chosen = in_backward ? group.policy.backward_prefetch : group.policy.forward_prefetch;
  if (!chosen.empty())
    chosen.erase(std::ranges::find_if_not(chosen, fits), chosen.end());
  else if (limit)
    chosen = order.ahead(SIZE_MAX, fits);
  else if (followed)
    chosen = that_followed(rank, group, order, *followed);
  std::erase_if(chosen, [&](GroupId id) FSDP_REQUIRES(rank.mutex) { return !shows_whole(rank, id); });
  return chosen;
}

// Frees groups that are neither around one of `groups` nor inside it nor in `next`: the least recently read first,
// until `left` of them are left.
//
// Note [What frees]. While a scope or a backward goes on, only a read frees groups. Its decision depends only on
// earlier reads and on the user's settings, which are the same on every rank. The gradients that a rank's graph has yet
// to give are not the same on every rank. If a group were freed once its gradients have arrived, a later read would
// gather the group again on some ranks only.
void free_unrelated(RankState& rank, std::span<ParamGroup* const> groups, const std::vector<GroupId>& next, size_t left)
    FSDP_REQUIRES(rank.mutex) {
  const auto is_nested = [&](GroupId id) FSDP_REQUIRES(rank.mutex) {
    return std::ranges::any_of(
        groups, [&](const ParamGroup* read) FSDP_REQUIRES(rank.mutex) { return rank.tree.are_nested(read->id(), id); });
  };
  std::vector<ParamGroup*> others;
  for (GroupId id : rank.residents)
    if (auto& resident = *rank.group(id); !resident.stays_after_forward() && !resident.pins.are_there() &&
                                          std::ranges::find(next, id) == next.end() && !is_nested(id))
      others.push_back(&resident);
  others.resize(others.size() - std::min(others.size(), left));
  // A group that a backward may gather again keeps second shards, if it has neighbours.
  for (auto* group : others) group->reshard(/*keeps_second_shard=*/group->scope && group->scope->records);
}

}  // namespace

void read_groups(RankState& rank, std::span<ParamGroup* const> groups) {
  auto& current = rank.reads.current;
  if (groups.size() == 1 && groups[0]->id() == current && groups[0]->state() == GatherState::kWhole)
    return groups[0]->wait_for_unshard();
  const OwnOperators own_operators;
  bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  for (auto* group : groups) {
    group->require_not_handed_out();
    // The order of reductions does not change while a backward is open, because some ranks may already have started to
    // reduce groups for which other ranks lack a gradient.
    if (group->first_read == 0 && !group->is_in_backward()) group->first_read = ++rank.reads.first_reads;
  }
  // If rows are whole parameters, groups are neither freed nor gathered ahead. The whole parameters of ranks that share
  // memory take no memory either, but their groups take the same path as over a network.
  if (std::ranges::all_of(groups, [](ParamGroup* group) { return group->params().rows_are_whole(); })) {
    for (auto* group : groups) group->wait_for_unshard();
    current = groups.back()->id();
    return;
  }
  std::vector<GroupId> next;
  for (auto* group : groups) next = predict(rank, *group, in_backward);
  // Other groups are freed before memory is allocated, so that besides the groups around them at most two groups have
  // memory, or those that max_prefetched_bytes allows. Backward also allocates gradients, so it keeps only groups that
  // are needed next.
  const bool is_limited = groups.back()->policy.max_prefetched_bytes.has_value();
  free_unrelated(rank, groups, next, in_backward || is_limited || !next.empty() ? 0 : 1);
  for (auto* group : groups) {
    group->wait_for_unshard();
    std::erase(rank.residents, group->id());
    rank.residents.push_back(group->id());
  }
  current = groups.back()->id();
  for (GroupId id : next) {
    auto* group = rank.group(id);
    if (group == nullptr || !group->is_inside() || group->state() != GatherState::kSharded) continue;
    const Span span(rank.timeline, "prefetch", group->name());
    group->unshard();
  }
}

}  // namespace fsdp::runtime
