#pragma once
/// \file
/// This rank's number in its group, and the names that error messages give to ranks.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/core/text.h"

namespace fsdp {

class Timeline;

/// A rank's number in its group. In each group ranks are numbered from 0. Error messages name a rank by its global
/// rank, which is its number in the group from which all other groups were split.
struct Ranks {
  int rank = 0, world_size = 1;
  /// Set only for a group that was split from another: the group's name, the ascending global ranks of its members, and
  /// the number of all global ranks. `global` is empty in other groups, where `rank` is the global rank.
  std::string group = {};
  std::vector<int> global = {};
  int global_size = 0;
  /// The timeline that records what this rank does in any of its groups; null if there is none.
  std::shared_ptr<Timeline> timeline = {};

  /// Returns the global rank of the rank that has this number in the group.
  int name_of(int number) const { return global.empty() ? number : global.at(static_cast<size_t>(number)); }
  /// Returns the number in the group of the rank with the global rank `name`; -1 if the group has no such rank.
  int number_of(int name) const {
    if (global.empty()) return name < world_size ? name : -1;
    const auto place = std::ranges::lower_bound(global, name);
    return place != global.end() && *place == name ? static_cast<int>(place - global.begin()) : -1;
  }
  /// Returns this rank's global rank.
  int name() const { return name_of(rank); }

  /// Returns the beginning of error messages: "[fsdp rank 1/4] all_gather: ", in a subgroup "[fsdp rank 5/8, 'pairs'
  /// 1/2] all_gather: ".
  std::string where(std::string_view operation) const {
    const std::string own = str_cat(rank, '/', world_size);
    if (global.empty()) return str_cat("[fsdp rank ", own, "] ", operation, ": ");
    return str_cat("[fsdp rank ", name(), '/', global_size, ", '", group, "' ", own, "] ", operation, ": ");
  }

  /// Returns this rank's Ranks in a subgroup with the name `label`. `members` are the global ranks of the subgroup in
  /// ascending order, including this rank's.
  Ranks in_subgroup(std::string label, std::vector<int> members) const {
    const auto place = std::ranges::lower_bound(members, name()) - members.begin();
    const auto size = static_cast<int>(members.size());
    return {static_cast<int>(place), size, std::move(label), std::move(members),
            global.empty() ? world_size : global_size, timeline};
  }
};

}  // namespace fsdp
