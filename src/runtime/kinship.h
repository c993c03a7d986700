#pragma once
/// \file
/// Which groups' modules lie inside one another. Integers only.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/schedule.h"

namespace fsdp::runtime {

/// The groups of each group's next outer modules; most have one, a module in two others has two.
using Parents = std::unordered_map<GroupId, std::vector<GroupId>>;

/// Answers without walking through the tree: groups are numbered so that those inside a group follow it. Only groups
/// inside several others, which have one place all the same, make it walk.
class Kinship {
 public:
  /// The numbers of a group and all that are inside it.
  struct Span {
    uint32_t first = 0, last = 0;
  };

  explicit Kinship(Parents parents);

  Span span_of(GroupId group) const { return spans_.at(group); }
  /// Whether one of two groups is inside the other, or they are the same.
  bool are_related(GroupId a, GroupId b) const {
    return contains(span_of(a), span_of(b)) || contains(span_of(b), span_of(a)) ||
           (is_shared_ && (is_inside(a, b) || is_inside(b, a)));
  }

 private:
  static bool contains(Span outer, Span inner) { return outer.first <= inner.first && inner.first < outer.last; }
  bool is_inside(GroupId inner, GroupId outer) const;

  Parents parents_;
  std::unordered_map<GroupId, Span> spans_;
  bool is_shared_ = false;  // some group has several parents
};

}  // namespace fsdp::runtime
