#pragma once
/// \file
/// Which groups are needed next, how they nest, and which are in memory: integers, by which reads.cpp decides which are
/// freed.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

namespace fsdp::runtime {

using GroupId = uint64_t;

/// Predicts which group is read next: the one that followed when reads were last in the order that they are in now, in
/// the pass before or in an earlier round of the same pass, such as a loop inside one scope. A group that is read again
/// after another one counts again. Remembers a bounded number of reads; each takes constant time.
class ReadOrder {
 public:
  void start();
  /// Notes that `group` is read and returns the group that followed it before, if it is known.
  std::optional<GroupId> note(GroupId group);
  /// The groups that followed the one that was noted last, the next one first, each once, up to the pass's end, `most`,
  /// or the first one that does not fit, which is asked in this order.
  std::vector<GroupId> ahead(
      size_t most = SIZE_MAX, const std::function<bool(GroupId)>& fits = [](GroupId) { return true; }) const;
  size_t size() const { return reads_.size(); }

 private:
  using Place = uint64_t;  // reads are numbered from 1

  Place end() const { return first_ + reads_.size(); }
  GroupId at(Place place) const { return reads_[place - first_]; }
  bool is_known(Place place) const { return place >= first_; }
  void append(GroupId group);
  Place find_place(GroupId group) const;

  std::deque<GroupId> reads_;  // 0 where a pass begins
  Place first_ = 1;            // of what is remembered
  Place pass_ = 0;             // where this pass begins
  Place place_ = 0;            // the earlier read that the last one repeats; 0: none
  std::unordered_map<GroupId, Place> last_;
};

/// What was read on a rank, and what that predicts.
struct ReadHistory {
  struct Orders {
    ReadOrder forward, backward;
  };
  std::atomic<GroupId> current = 0;  // read last; 0: none since a scope or a backward began
  uint64_t first_reads = 0;
  std::unordered_map<GroupId, Orders> orders;  // by the outermost group of a scope

  /// What follows is like nothing before.
  void forget() {
    current = 0;
    orders.clear();
  }
};

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
  bool are_nested(GroupId a, GroupId b) const { return contains(a, b) || contains(b, a); }

 private:
  std::unordered_map<GroupId, std::vector<GroupId>> parents_;
};

}  // namespace fsdp::runtime
