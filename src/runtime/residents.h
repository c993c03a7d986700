#pragma once
/// \file
/// Which groups' whole parameters are in memory, and which of them lie apart from one that is read. Integers only.

#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/kinship.h"

namespace fsdp::runtime {

/// Finds what may be freed without looking at what may not: the groups around and inside the one that is read, and
/// those that were told to stay. Both may be as many as there are groups.
class Residents {
 public:
  /// The group is in memory, or will be, and was read last.
  void note(GroupId group, Kinship::Span span);
  void forget(GroupId group);
  /// Groups lie elsewhere than before.
  void move(const Kinship& kinship);
  /// The group stays in memory whatever is read, until `reconsider` or until it is forgotten.
  void keep(GroupId group);
  void reconsider(GroupId group);

  /// The groups that are neither inside nor around the one of `span`, nor kept; least recently read first.
  std::vector<GroupId> apart_from(Kinship::Span span) const;
  /// The group of `span` and those inside it, without what is kept.
  std::vector<GroupId> within(Kinship::Span span) const;

 private:
  struct Entry {
    Kinship::Span span;
    uint64_t read = 0;  // when
    bool is_kept = false;
  };
  using Order = std::set<std::pair<uint32_t, GroupId>>;

  void list(GroupId group, Kinship::Span span);
  void unlist(GroupId group, Kinship::Span span);

  std::unordered_map<GroupId, Entry> entries_;
  // Those that are not kept, by both ends of their spans: what ends before another span begins is apart from it, and so
  // is what begins behind its end.
  Order by_first_, by_last_;
  uint64_t reads_ = 0;
};

}  // namespace fsdp::runtime
