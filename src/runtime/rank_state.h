#pragma once
/// \file
/// What the groups of one rank share: the lock, the byte account, and who is in memory.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "comm/core/rank_lock.h"
#include "memory/byte_account.h"
#include "runtime/kinship.h"
#include "runtime/residents.h"
#include "runtime/schedule.h"

namespace fsdp {
class SharedBuffer;
class Work;
}

namespace fsdp::runtime {

class ParamGroup;

constexpr const char* kUnfinishedBackward =
    "an earlier backward did not finish, because an exception ended it or because it runs on another thread. Call "
    "reset_iter_state() on the model on every rank, then start the iteration again";

/// When a group is reduced in a backward: in the reverse order of first reads, the same on every rank. Groups that
/// forward need not have reached come last, by number.
struct Turn {
  bool is_last = false;
  uint64_t first_read = 0;
  GroupId group = 0;

  bool operator<(const Turn& other) const {
    return std::tuple(is_last, other.first_read, other.group) < std::tuple(other.is_last, first_read, group);
  }
};

/// A graph task (one run of autograd's engine) that entered groups of this rank.
struct BackwardTask {
  int id = -1;
  bool restricted = false;      // autograd::grad, backward(inputs): parameters outside the inputs are left alone
  std::vector<GroupId> groups;  // in the order in which they were entered
  std::set<Turn> turns;         // of groups whose reduction has not come up yet
  std::weak_ptr<void> runs;     // expires with the task, also if an exception ends it
  std::thread::id thread;       // in which it entered the first of them
};

/// One per process group and rank. Groups refer to it; it refers to them by number.
///
/// Note [The rank's lock]. On CUDA, backward hooks run on device threads while CPU nodes run in the caller, and user
/// code may run forward on any thread. Every public entry of the runtime takes `mutex`; no operator of the user's runs
/// under it. A thread that waits for other ranks lets it go, so that other threads can do what those ranks wait for;
/// whoever waits looks afterwards what has become of the group. It is kept while the ranks start over. Counts and the
/// byte account are read without it.
class RankState {
 public:
  RankState() : account_(std::make_shared<memory::ByteAccount>()) {}

  RankLock mutex;
  /// Waits for other ranks. What the lock protects may be different afterwards.
  void wait(Work& work);
  /// The same until no other rank reads what this one is about to write.
  void wait_to_write(SharedBuffer& rows, uint64_t epoch);

  memory::ByteAccount& account() const { return *account_; }
  const std::shared_ptr<memory::ByteAccount>& shared_account() const { return account_; }

  GroupId add(ParamGroup& group);
  void remove(GroupId id);
  /// Null if the group is gone.
  ParamGroup* group(GroupId id) const;

  /// Operators that took a sharded tensor.
  std::atomic<int64_t> intercepted_operators = 0;

  // Reading. An operator is about to read `groups`.
  void read(std::span<ParamGroup* const> groups);
  /// A new pass begins: the next read counts as a first one.
  void forget_current() { current_ = 0; }
  /// A node of `group` starts in backward: groups without further gradients need not stay.
  void free_finished(const ParamGroup& group);
  void note_resident(const ParamGroup& group);
  void forget_resident(const ParamGroup& group);
  /// What decides whether the group stays in memory after forward has changed.
  void reconsider_resident(const ParamGroup& group);
  /// Groups have other parents than before.
  void forget_kinship() {
    std::lock_guard lock(mutex);
    kinship_.reset();
  }

  // Backward.
  /// The current graph task is about to use `group`: everything of its scope shows whole parameters until the task
  /// ends. Returns whether it had not used it before.
  bool enter_backward(ParamGroup& group);
  /// Throws UsageError if another thread runs a backward through `group`, and tells the other ranks, which may wait for
  /// this thread's `operation`.
  void require_no_backward_elsewhere(const ParamGroup& group, const char* operation) const;
  void gradient_arrived(ParamGroup& group, size_t slot, at::Tensor gradient);
  /// Forgets open graph tasks, reductions and all predictions, after an exception.
  void reset_backward();

 private:
  void free_others(std::span<ParamGroup* const> groups, std::span<const GroupId> next, size_t left);
  const Kinship& kinship();
  template <class Stays>
  void free_unrelated(std::span<const ParamGroup* const> groups, size_t left, const Stays& stays);
  std::vector<GroupId> predict(ParamGroup& group, bool in_backward);
  void end_task(int id);
  void note_first_read(ParamGroup& group);
  ParamGroup* next_reduction(BackwardTask& task, GroupId completed);
  void advance_reductions(int task, GroupId completed);
  void reduce_rest(const BackwardTask& task);
  bool finish_oldest_reduction();
  void start_reduction(ParamGroup& group);

  std::shared_ptr<memory::ByteAccount> account_;
  GroupId last_id_ = 0;
  std::unordered_map<GroupId, ParamGroup*> groups_;
  Residents residents_;  // whole or being gathered
  std::optional<Kinship> kinship_;
  GroupId current_ = 0;  // read last
  uint64_t reads_ = 0;
  std::map<int, std::shared_ptr<BackwardTask>> tasks_;
  std::deque<GroupId> reducing_;  // reductions in flight, oldest first
};

}  // namespace fsdp::runtime
