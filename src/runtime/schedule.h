#pragma once
/// \file
/// Records of the order in which groups are read and of how they nest. They contain integers only; reads.cpp uses them
/// to decide which groups it frees and gathers ahead.

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

/// Predicts which group is read next. A pass is one forward or one backward. The prediction is the group that followed
/// when groups were last read in the current order: in the previous pass, or earlier in this pass if a scope runs a
/// loop. Several reads of a group count as one until another group is read. The class remembers a bounded number of
/// reads, and each read takes constant time.
class ReadOrder {
 public:
  /// Begins a pass.
  void start();
  /// Notes that `group` is read. Returns the group that is predicted to follow; nothing if none is known.
  std::optional<GroupId> note(GroupId group);
  /// Returns the groups that are predicted to follow the last read, each once, the next one first. The list ends with
  /// the pass, after `most` groups, or before the first group for which `fits` returns false. `fits` is called in the
  /// order of the list.
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

  std::deque<GroupId> reads_;  // the remembered reads; 0 marks the beginning of a pass
  Place first_ = 1;            // number of the oldest remembered read
  Place pass_ = 0;             // where this pass begins
  Place place_ = 0;            // the earlier read that the last read repeats; 0 if there is none
  std::unordered_map<GroupId, Place> last_;
};

/// The reads of one rank.
struct ReadHistory {
  struct Orders {
    ReadOrder forward, backward;
  };
  std::atomic<GroupId> current = 0;  // the group that was read last; 0 if none since a scope or a backward began
  uint64_t first_reads = 0;          // number of first reads so far (see ParamGroup::first_read)
  std::unordered_map<GroupId, Orders> orders;  // by the outermost group of a scope

  /// Forgets all reads, so that nothing is predicted from them.
  void forget() {
    current = 0;
    orders.clear();
  }
};

/// How the modules of one rank's groups nest. Most groups have one parent, the group of the next module around theirs.
/// An outermost group has none, and a group whose module is registered in two modules may have two.
class GroupTree {
 public:
  void add(GroupId group) { parents_[group]; }
  void remove(GroupId group) { parents_.erase(group); }
  void add_parent(GroupId group, GroupId parent) {
    auto& parents = parents_.at(group);
    if (std::ranges::find(parents, parent) == parents.end()) parents.push_back(parent);
  }
  /// Returns true if `inner` is `outer` or lies inside it.
  bool contains(GroupId outer, GroupId inner) const {
    if (inner == outer) return true;
    const auto place = parents_.find(inner);
    if (place == parents_.end()) return false;  // the group was removed, and its parents with it
    return std::ranges::any_of(place->second, [&](GroupId parent) { return contains(outer, parent); });
  }
  bool are_nested(GroupId a, GroupId b) const { return contains(a, b) || contains(b, a); }

 private:
  std::unordered_map<GroupId, std::vector<GroupId>> parents_;
};

}  // namespace fsdp::runtime
