#pragma once
/// \file
/// What is remembered of a forward scope for its backward.

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/schedule.h"

namespace fsdp::runtime {

class ParamGroup;

/// What one outermost forward scope covered; its backward uses it.
struct ScopeRecord {
  GroupId root = 0;
  std::vector<GroupId> groups;
  bool recorded = false;  // autograd recorded an operator on one of the groups
  bool observed = false;  // LibTorch's observers were on when it opened
  bool records = false;   // gradients were on when it opened

  /// Operators took what has neither an accumulator nor a hook while gradients were off: perhaps inside a custom
  /// Function, whose node nothing else tells of. Such nodes are known by the thread that made them and by their number.
  bool is_hidden = false;
  uint64_t thread = 0, first_node = 0, end_node = 0;
  std::weak_ptr<ParamGroup> outermost;
  bool has_node(uint64_t of_thread, uint64_t number) const {
    return of_thread == thread && number >= first_node && number < end_node;
  }
};

}  // namespace fsdp::runtime
