#include "runtime/rank_state.h"

namespace fsdp::runtime {

GroupId RankState::add(ParamGroup& group) {
  const MutexLock lock(mutex);
  groups_[++last_id_] = &group;
  tree.add(last_id_);
  return last_id_;
}

void RankState::remove(GroupId id) {
  const MutexLock lock(mutex);
  std::erase(residents, id);
  reads.orders.erase(id);
  std::erase(reducing, id);
  groups_.erase(id);
  tree.remove(id);
  readers_at_rest.erase(id);
}

ParamGroup* RankState::group(GroupId id) const {
  auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : it->second;
}

std::vector<ParamGroup*> RankState::groups() const {
  std::vector<ParamGroup*> all;
  for (const auto& [id, group] : groups_) all.push_back(group);
  return all;
}

void RankState::wait(Work& work) {
  if (!work.lets_others_go_on()) return work.wait();
  const RankLock::ScopedRelease others_go_on(mutex);
  work.wait();
}

}  // namespace fsdp::runtime
