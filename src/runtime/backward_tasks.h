#pragma once
/// \file
/// What a forward scope leaves for its backward, and what is known of a backward while it runs. No tensors.

#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/core/timeline.h"
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

/// When a bucket of a group is reduced in a backward: groups in the reverse order of first reads, the same on every
/// rank, the buckets of each in theirs. Groups that forward need not have reached come last, by number.
struct OrderedBucket {
  bool is_last = false;
  uint64_t first_read = 0;
  GroupId group = 0;
  size_t bucket = 0;

  bool operator<(const OrderedBucket& other) const {
    return std::tuple(is_last, other.first_read, other.group, bucket) <
           std::tuple(other.is_last, first_read, group, other.bucket);
  }
};

/// A graph task (one run of autograd's engine) that entered groups of this rank.
struct BackwardTask {
  int id = -1;
  bool restricted = false;               // autograd::grad, backward(inputs): other parameters are left alone
  std::vector<GroupId> groups = {};      // in the order in which they were entered
  std::set<OrderedBucket> buckets = {};  // those whose reduction has not come up yet
  std::weak_ptr<void> runs = {};         // expires with the task, also if an exception ends it
  std::thread::id thread = {};           // in which it entered the first of them
  const void* beginner = nullptr;        // see beginner_of_backward
  Span span = {};
};

}  // namespace fsdp::runtime
