#include "runtime/rank_state.h"

#include <fsdp/communicator.h>

#include <algorithm>
#include <mutex>

namespace fsdp::runtime {

GroupId RankState::add(ParamGroup& group) {
  std::lock_guard lock(mutex);
  groups_[++last_id_] = &group;
  parents_[last_id_];
  kinship_.reset();
  return last_id_;
}

void RankState::remove(GroupId id) {
  std::lock_guard lock(mutex);
  residents.forget(id);
  reads.orders.erase(id);
  backwards.forget_reducing(id);
  groups_.erase(id);
  parents_.erase(id);
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

bool RankState::add_parent(GroupId group, GroupId parent) {
  std::lock_guard lock(mutex);
  auto& parents = parents_.at(group);
  if (std::ranges::find(parents, parent) != parents.end()) return false;
  parents.push_back(parent);
  kinship_.reset();
  return true;
}

const Kinship& RankState::kinship() {
  if (!kinship_) {
    kinship_.emplace(parents_);
    residents.move(*kinship_);
  }
  return *kinship_;
}

}  // namespace fsdp::runtime
