#pragma once
/// \file
/// What a forward scope leaves for its backward; the backwards that are open on a rank, and the reductions that they
/// have in flight. No tensors.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
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

/// Thread safety: under the rank's lock.
class BackwardTasks {
 public:
  /// Shared, because a thread that waits for other ranks may find its task closed afterwards. Null if there is none.
  std::shared_ptr<BackwardTask> find(int id) const {
    const auto task = tasks_.find(id);
    return task == tasks_.end() ? nullptr : task->second;
  }
  std::shared_ptr<BackwardTask> open(BackwardTask task) {
    const int id = task.id;
    return tasks_[id] = std::make_shared<BackwardTask>(std::move(task));
  }
  /// Returns whether it was open.
  bool close(int id) {
    const auto task = find(id);
    if (task) task->span.end(Stage::kDone);
    return tasks_.erase(id) > 0;
  }
  bool empty() const { return tasks_.empty(); }
  /// Whether one of them ended without being closed: by an exception.
  bool has_unfinished() const {
    return std::ranges::any_of(tasks_, [](const auto& entry) { return entry.second->runs.expired(); });
  }
  /// `beginner`: of the backward that this thread runs, which may be nested in that one; null if it runs none.
  bool runs_on_another_thread(int id, const void* beginner) const {
    const auto task = find(id);
    if (!task || task->runs.expired() || task->thread == std::this_thread::get_id()) return false;
    return beginner == nullptr || task->beginner != beginner;
  }

  /// A reduction of the group is in flight.
  void note_reducing(GroupId group) {
    forget_reducing(group);
    reducing_.push_back(group);
  }
  void forget_reducing(GroupId group) { std::erase(reducing_, group); }
  /// The group whose reduction is the oldest in flight, which is to be waited for before another one starts; none while
  /// there are fewer than may be.
  std::optional<GroupId> take_oldest_of_too_many() {
    if (reducing_.size() < kInFlight) return std::nullopt;
    const auto oldest = reducing_.front();
    reducing_.pop_front();
    return oldest;
  }

  void clear() {
    tasks_.clear();
    reducing_.clear();
  }

 private:
  static constexpr size_t kInFlight = 2;

  std::map<int, std::shared_ptr<BackwardTask>> tasks_;
  std::deque<GroupId> reducing_;  // oldest first
};

}  // namespace fsdp::runtime
