#pragma once
/// \file
/// Which groups' modules lie inside one another, and which groups' whole parameters are in memory. Integers only.

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/schedule.h"

namespace fsdp::runtime {

/// The groups of one rank. Most lie in the module of one next outer group, some in none, and those of a module that two
/// others have in two.
class GroupTree {
 public:
  void add(GroupId group) { parents_[group]; }
  void remove(GroupId group) { parents_.erase(group); }
  /// `parent` is the group of the module next around the group's.
  void add_parent(GroupId group, GroupId parent) {
    auto& parents = parents_.at(group);
    if (std::ranges::find(parents, parent) == parents.end()) parents.push_back(parent);
  }
  /// Whether `inner` lies inside `outer`, or is the same.
  bool contains(GroupId outer, GroupId inner) const {
    for (GroupId group = inner; group != outer;) {
      const auto place = parents_.find(group);
      if (place == parents_.end()) return false;  // gone, and with it what it lay in
      const auto& parents = place->second;
      if (parents.size() != 1)
        return std::ranges::any_of(parents, [&](GroupId parent) { return contains(outer, parent); });
      group = parents.front();
    }
    return true;
  }
  /// Whether one of two groups lies inside the other, or they are the same.
  bool are_nested(GroupId a, GroupId b) const { return contains(a, b) || contains(b, a); }

 private:
  std::unordered_map<GroupId, std::vector<GroupId>> parents_;
};

/// The groups that are in memory and that a read may free. Those that stay whatever is read are left out, since they
/// may be as many as there are groups.
class Residents {
 public:
  /// The group is in memory, or will be, and was read last.
  void note(GroupId group) {
    if (kept_.contains(group)) return;
    std::erase(by_reads_, group);
    by_reads_.push_back(group);
  }
  void forget(GroupId group) {
    if (kept_.erase(group) == 0) std::erase(by_reads_, group);
  }
  /// The groups for which `stays` is true stay in memory whatever is read, until `reconsider` or until they are
  /// forgotten.
  void keep_those(const auto& stays) {
    std::erase_if(by_reads_, [&](GroupId group) { return stays(group) && kept_.insert(group).second; });
  }
  void reconsider(GroupId group) {
    if (kept_.erase(group) > 0) by_reads_.push_back(group);
  }
  /// The groups that are not kept; least recently read first.
  const std::vector<GroupId>& by_reads() const { return by_reads_; }

 private:
  std::vector<GroupId> by_reads_;
  std::unordered_set<GroupId> kept_;
};

}  // namespace fsdp::runtime
