#include "runtime/kinship.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace fsdp::runtime {

Kinship::Kinship(Parents parents) : parents_(std::move(parents)) {
  std::unordered_map<GroupId, std::vector<GroupId>> children;
  std::vector<GroupId> open;
  for (auto& [group, around] : parents_) {
    std::erase_if(around, [&](GroupId parent) { return !parents_.contains(parent); });  // gone
    is_shared_ |= around.size() > 1;
    if (around.empty())
      open.push_back(group);
    else
      children[around.front()].push_back(group);
  }
  // A group is met twice: before and after what is inside it.
  uint32_t next = 0;
  while (!open.empty()) {
    const GroupId group = open.back();
    const auto [span, is_new] = spans_.try_emplace(group);
    if (is_new) {
      span->second.first = next++;
      const auto& inside = children[group];
      open.insert(open.end(), inside.begin(), inside.end());
    } else {
      span->second.last = next;
      open.pop_back();
    }
  }
  for (const auto& [group, around] : parents_) spans_.try_emplace(group);
}

bool Kinship::is_inside(GroupId inner, GroupId outer) const {
  std::unordered_set<GroupId> seen;
  for (std::vector<GroupId> open{inner}; !open.empty();) {
    const GroupId group = open.back();
    open.pop_back();
    if (group == outer) return true;
    if (!seen.insert(group).second) continue;
    const auto& around = parents_.at(group);
    open.insert(open.end(), around.begin(), around.end());
  }
  return false;
}

}  // namespace fsdp::runtime
