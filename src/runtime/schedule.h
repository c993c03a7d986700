#pragma once
/// \file
/// Which groups are needed next, and which may be freed. Integers only; the runtime carries the decisions out.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace fsdp::runtime {

using GroupId = uint64_t;

/// Predicts which group is read next: the one that followed when reads were last in the order that they are in now, in
/// the pass before or in an earlier round of the same pass, such as a loop inside one scope.
///
/// A group that is read again after another one counts again, so blocks that are used several times are predicted too.
/// Remembers a bounded number of reads; each takes constant time.
class ReadOrder {
 public:
  /// Begins a pass.
  void start();
  /// Notes that `group` is read and returns the group that followed it before, if it is known.
  std::optional<GroupId> note(GroupId group);
  /// How many reads are remembered.
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

/// A group whose whole parameters are in memory, as far as freeing is concerned.
struct Resident {
  GroupId group = 0;
  /// Not to be freed: told to stay, part of the operator, an ancestor or a descendant of one, or needed next.
  bool is_protected = false;
};

/// The groups to free, oldest first, until at most `left` unprotected ones stay. `residents`: least recently read
/// first.
std::vector<GroupId> groups_to_free(std::span<const Resident> residents, size_t left);

}  // namespace fsdp::runtime
