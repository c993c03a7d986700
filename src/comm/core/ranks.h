#pragma once
/// \file
/// Which rank this is among which others, and what errors call them.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/core/text.h"

namespace fsdp {

class Timeline;

/// A rank's number in its group. Ranks count from 0 in each group; errors call them by their global ranks, which are
/// their numbers in the group from which all others were split.
struct Ranks {
  int rank = 0, world_size = 1;
  /// Of a group that was split from another one: its name, its ranks' global ones, ascending, and how many there are in
  /// all. Of another group they are as here.
  std::string group = {};
  std::vector<int> global = {};
  int global_size = 0;
  /// Where what this rank does is written down, in whichever of its groups; null: nowhere.
  std::shared_ptr<Timeline> timeline = {};

  /// The global rank of the one with this number in the group.
  int name_of(int number) const { return global.empty() ? number : global.at(static_cast<size_t>(number)); }
  /// And back; -1: none in the group.
  int number_of(int name) const {
    if (global.empty()) return name < world_size ? name : -1;
    const auto place = std::ranges::lower_bound(global, name);
    return place != global.end() && *place == name ? static_cast<int>(place - global.begin()) : -1;
  }
  /// This rank's own.
  int name() const { return name_of(rank); }

  /// How errors begin: "[fsdp rank 1/4] all_gather: ", in a subgroup "[fsdp rank 5/8, 'pairs' 1/2] all_gather: ".
  std::string where(std::string_view operation) const {
    const std::string own = str_cat(rank, '/', world_size);
    if (global.empty()) return str_cat("[fsdp rank ", own, "] ", operation, ": ");
    return str_cat("[fsdp rank ", name(), '/', global_size, ", '", group, "' ", own, "] ", operation, ": ");
  }

  /// The same rank in a subgroup of `members`, global ranks of this group in ascending order, this one among them.
  Ranks in_subgroup(std::string called, std::vector<int> members) const {
    const auto place = std::ranges::lower_bound(members, name()) - members.begin();
    const auto size = static_cast<int>(members.size());
    return {static_cast<int>(place), size, std::move(called), std::move(members),
            global.empty() ? world_size : global_size, timeline};
  }
};

}  // namespace fsdp
