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
  forget_kinship();
  return last_id_;
}

void RankState::remove(GroupId id) {
  std::lock_guard lock(mutex);
  if (const auto* group = this->group(id)) forget_resident(*group);
  groups_.erase(id);
  std::erase(reducing_, id);
}

ParamGroup* RankState::group(GroupId id) const {
  auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : it->second;
}

void RankState::wait(Work& work) {
  if (!work.lets_others_go_on()) return work.wait();
  const RankLock::LetGo others_go_on(mutex);
  work.wait();
}

void RankState::wait_to_write(SharedBuffer& rows, uint64_t epoch) {
  const RankLock::LetGo others_go_on(mutex);
  rows.begin_write(epoch);
}

void RankState::note_resident(const ParamGroup& group) { residents_.note(group.id(), kinship().span_of(group.id())); }

void RankState::forget_resident(const ParamGroup& group) { residents_.forget(group.id()); }

void RankState::reconsider_resident(const ParamGroup& group) { residents_.reconsider(group.id()); }

void RankState::read(std::span<ParamGroup* const> groups) {
  if (groups.size() == 1 && groups[0]->id() == current_ && groups[0]->gather_state() == GatherState::kWhole)
    return groups[0]->order_read();
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  std::vector<GroupId> next;
  for (auto* group : groups) {
    note_first_read(*group);
    next = predict(*group, in_backward);
  }
  // Others are freed before memory is taken, so that at most two groups beside the ancestors hold any.
  free_others(groups, next, next.empty() ? 1 : 0);
  for (auto* group : groups) {
    group->finish_gather();
    group->order_read();
    note_resident(*group);
  }
  current_ = groups.back()->id();
  for (GroupId id : next)
    if (auto* group = this->group(id); group != nullptr && group->is_inside()) group->start_gather();
}

// The groups that are needed next: those that the user listed, or the one that followed in the last pass.
std::vector<GroupId> RankState::predict(ParamGroup& group, bool in_backward) {
  auto* root = group.scope ? this->group(group.scope->root) : nullptr;
  if (root == nullptr) return {};
  auto followed = (in_backward ? root->backward_order : root->forward_order).note(group.id());
  auto chosen = in_backward ? group.policy.backward_prefetch : group.policy.forward_prefetch;
  if (chosen.empty() && followed) chosen.push_back(*followed);
  std::erase_if(chosen, [&](GroupId id) {
    const auto* predicted = this->group(id);
    return predicted == nullptr || !predicted->is_inside();
  });
  return chosen;
}

const Kinship& RankState::kinship() {
  if (!kinship_) {
    Parents parents;
    for (const auto& [id, group] : groups_) parents.emplace(id, group->parents());
    kinship_.emplace(std::move(parents));
    residents_.move(*kinship_);
  }
  return *kinship_;
}

// Of the groups that are neither around one of `groups` nor inside it, oldest first, until `left` are left.
template <class Stays>
void RankState::free_unrelated(std::span<const ParamGroup* const> groups, size_t left, const Stays& stays) {
  const auto& kinship = this->kinship();
  std::vector<Resident> others;
  for (GroupId id : residents_.apart_from(kinship.span_of(groups.front()->id()))) {
    auto& resident = *group(id);
    if (resident.stays_after_forward())
      residents_.keep(id);
    else if (!stays(resident) &&
             std::ranges::none_of(groups, [&](const ParamGroup* read) { return kinship.are_related(read->id(), id); }))
      others.push_back({id});
  }
  for (GroupId id : groups_to_free(others, left)) group(id)->free_whole();
}

void RankState::free_others(std::span<ParamGroup* const> groups, std::span<const GroupId> next, size_t left) {
  free_unrelated(groups, left, [&](ParamGroup& resident) {
    return resident.pins > 0 || std::find(next.begin(), next.end(), resident.id()) != next.end();
  });
}

void RankState::free_finished(const ParamGroup& group) {
  if (group.id() == current_) return;
  const ParamGroup* const begun[] = {&group};
  free_unrelated(begun, 0, [](ParamGroup& resident) {
    return !resident.reducer().is_complete() || resident.pins > 0 || resident.open_tasks.empty() ||
           resident.gather_state() == GatherState::kGathering || !resident.policy.reshard_after_backward;
  });
}

}  // namespace fsdp::runtime
