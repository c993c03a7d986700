#pragma once
/// \file
/// What the groups of one rank share: the lock, the byte account, who is in memory, what was read, which backwards run.

#include <c10/core/Stream.h>
#include <fsdp/communicator.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "comm/core/rank_lock.h"
#include "comm/core/timeline.h"
#include "memory/byte_account.h"
#include "runtime/host_rows.h"
#include "runtime/schedule.h"

namespace fsdp {
class ProcessGroup;
}  // namespace fsdp

namespace fsdp::runtime {

class ParamGroup;

/// What one outermost forward scope covered; its backward uses it.
struct ScopeRecord {
  GroupId root = 0;
  std::vector<GroupId> groups;
  bool recorded = false;  // an operator read one of the groups while gradients were on
  bool records = false;   // gradients were on when it opened
};

/// The order in which a backward reduces buckets, the same on every rank: groups in the reverse order of their first
/// reads, and the buckets of a group in turn. Groups that forward may not have reached come last, by number.
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
  Span span = {};
};

/// One per process group and rank. Groups refer to it; it refers to them by number, and does nothing with them.
///
/// Note [The rank's lock]. On CUDA, backward hooks run on device threads while CPU nodes run in the caller, and user
/// code may run forward on any thread. Every public entry of the runtime takes `mutex`. Of the user's code only custom
/// collectives and the hooks of a group's gradients run under it, as their headers say: which collective comes next is
/// decided under it, and they start collectives. A thread that waits for other ranks lets it go, so that other threads
/// can do what those ranks wait for; whoever waits looks afterwards what has become of the group. It is kept while the
/// ranks start over. Counts and the byte account are read without it.
///
/// clang checks it for members of this class and functions that are given it.
class RankState {
 public:
  RankLock mutex;
  /// Waits for other ranks. What the lock protects may be different afterwards.
  void wait(Work& work);
  /// The same until no other rank reads what this one is about to write.
  void wait_to_write(SharedBuffer& rows, uint64_t epoch);

  memory::ByteAccount& account() const { return *account_; }
  const std::shared_ptr<memory::ByteAccount>& shared_account() const { return account_; }
  const std::shared_ptr<memory::ChargesOnce>& kept_inputs() const { return kept_inputs_; }

  const std::shared_ptr<HostCopies> host_copies = std::make_shared<HostCopies>();

  GroupId add(ParamGroup& group);
  void remove(GroupId id);
  /// Null if the group is gone.
  ParamGroup* group(GroupId id) const FSDP_REQUIRES(mutex);
  std::vector<ParamGroup*> groups() const FSDP_REQUIRES(mutex);

  /// Operators that took a sharded tensor.
  std::atomic<int64_t> intercepted_operators = 0;
  /// Groups whose rows this rank reads though nothing is open on them; the writes that every rank makes to any group.
  std::map<GroupId, ParamGroup*> readers_at_rest;
  uint64_t writes_by_all = 0;
  GroupTree tree FSDP_GUARDED_BY(mutex);
  std::vector<GroupId> residents;  ///< groups that are in memory, or will be; least recently read first
  ReadHistory reads;
  /// The graph tasks that entered groups. Shared: a thread that waits may find its task closed afterwards.
  std::map<int, std::shared_ptr<BackwardTask>> backwards FSDP_GUARDED_BY(mutex);
  /// Groups that have a reduction in flight, the oldest first.
  std::deque<GroupId> reducing FSDP_GUARDED_BY(mutex);
  /// On which gathers come after an event of the user's, or that begin with rows of the host; made for the first one.
  std::optional<c10::Stream> gather_stream;
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
  /// In a step of fsdp::join: without data the gradients of this rank's backwards are left out; what sums are divided
  /// by is multiplied by the share of ranks that have data; and the rank whose buffers are broadcast is the first such.
  std::atomic<bool> has_data = true;
  double share_with_data = 1;
  int buffers_from FSDP_GUARDED_BY(mutex) = 0;
  bool keeps_files FSDP_GUARDED_BY(mutex) = false;  ///< some groups have rows in files
  /// Made once, by their global ranks. See Placement::within.
  std::map<std::vector<int>, std::shared_ptr<ProcessGroup>> neighbours;

 private:
  const std::shared_ptr<memory::ByteAccount> account_ = std::make_shared<memory::ByteAccount>();
  const std::shared_ptr<memory::ChargesOnce> kept_inputs_ = std::make_shared<memory::ChargesOnce>();
  GroupId last_id_ FSDP_GUARDED_BY(mutex) = 0;
  std::unordered_map<GroupId, ParamGroup*> groups_ FSDP_GUARDED_BY(mutex);
};

}  // namespace fsdp::runtime
