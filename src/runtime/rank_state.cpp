#include "runtime/rank_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/scope.h"

namespace fsdp::runtime {

GroupId RankState::add(ParamGroup& group) {
  std::lock_guard lock(mutex);
  groups_[++last_id_] = &group;
  return last_id_;
}

void RankState::remove(GroupId id) {
  std::lock_guard lock(mutex);
  groups_.erase(id);
  forget_resident(id);
  std::erase(reducing_, id);
}

ParamGroup* RankState::group(GroupId id) const {
  auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : it->second;
}

void RankState::note_resident(GroupId id) {
  forget_resident(id);
  residents_.push_back(id);
}

void RankState::read(std::span<ParamGroup* const> groups) {
  if (groups.size() == 1 && groups[0]->id() == current_ && groups[0]->gather_state() == GatherState::kWhole) return;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  std::vector<ParamGroup*> next;
  for (auto* group : groups) {
    note_first_read(*group);
    next = predict(*group, in_backward);
  }
  // Others are freed before memory is taken, so that at most two groups beside the ancestors hold any.
  free_others(groups, next, next.empty() ? 1 : 0);
  for (auto* group : groups) {
    group->finish_gather();
    note_resident(group->id());
  }
  current_ = groups.back()->id();
  for (auto* group : next) group->start_gather();
}

// The groups that are needed next: those that the user listed, or the one that followed in the last pass.
std::vector<ParamGroup*> RankState::predict(ParamGroup& group, bool in_backward) {
  auto* root = group.scope ? this->group(group.scope->root) : nullptr;
  if (root == nullptr) return {};
  auto followed = (in_backward ? root->backward_order : root->forward_order).note(group.id());
  auto chosen = in_backward ? group.policy.backward_prefetch : group.policy.forward_prefetch;
  if (chosen.empty() && followed) chosen.push_back(*followed);
  std::vector<ParamGroup*> next;
  for (GroupId id : chosen)
    if (auto* predicted = this->group(id); predicted != nullptr && predicted->is_inside()) next.push_back(predicted);
  return next;
}

void RankState::free_others(std::span<ParamGroup* const> groups, std::span<ParamGroup* const> next, size_t left) {
  std::vector<Resident> residents;
  for (GroupId id : residents_) {
    auto& resident = *group(id);
    bool stays = resident.stays_after_forward() || resident.pins > 0 ||
                 std::find(next.begin(), next.end(), &resident) != next.end();
    for (auto* group : groups) stays |= group == &resident || group->is_related(resident);
    residents.push_back({id, stays});
  }
  for (GroupId id : groups_to_free(residents, left)) group(id)->free_whole();
}

void RankState::free_finished(const ParamGroup& group) {
  if (group.id() == current_) return;
  std::vector<Resident> residents;
  for (GroupId id : residents_) {
    auto& resident = *this->group(id);
    bool stays = !resident.reducer().is_complete() || resident.pins > 0 || resident.open_tasks.empty() ||
                 resident.gather_state() == GatherState::kGathering || resident.stays_after_forward() ||
                 !resident.policy.reshard_after_backward || &resident == &group || resident.is_related(group);
    residents.push_back({id, stays});
  }
  for (GroupId id : groups_to_free(residents, 0)) this->group(id)->free_whole();
}

}  // namespace fsdp::runtime
