#pragma once
/// \file
/// State that the groups of one rank share: the lock, the byte account, the groups that are in memory, the reads so far
/// and the open backwards.

#include <c10/core/Stream.h>
#include <fsdp/process_group.h>

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

namespace fsdp::runtime {

class ParamGroup;

/// Record of one outermost forward scope, which the backward of that forward uses.
struct ScopeRecord {
  GroupId root = 0;
  std::vector<GroupId> groups;
  bool recorded = false;  // autograd recorded an operator on one of the groups
  bool records = false;   // at::GradMode was enabled when the scope opened
};

/// A bucket with its place in the order in which a backward reduces, which is the same on every rank: groups in the
/// reverse order of their first reads, and the buckets of a group by index. Groups that are reduced even if forward did
/// not reach them (`is_last`) come last, the highest id first.
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
  bool restricted = false;               // true in autograd::grad and backward(inputs), which skip other parameters
  std::vector<GroupId> groups = {};      // in the order in which the task entered them
  std::set<OrderedBucket> buckets = {};  // buckets whose turn to be reduced has not come yet
  std::weak_ptr<void> runs = {};         // expires when the task ends, even by an exception
  std::thread::id thread = {};           // thread in which the task entered its first group
  Span span = {};
};

/// State of one rank of a process group. The groups share this object, which stores only their ids and addresses.
///
/// Note [The rank's lock]. On CUDA, backward hooks run on device threads while CPU nodes run in the thread that called
/// backward, and users may run forward on any thread. Every public function of the runtime therefore locks `mutex`. The
/// lock is released while user code runs, except for custom collectives and the hooks of a group's gradients, as their
/// headers say: these start collectives, and the lock fixes the order of collectives. A thread also releases the lock
/// while it waits for other ranks, so that other threads can do what those ranks wait for. After the wait it checks
/// what the other threads have done to the group. The lock is held while the ranks start over. Counts and the byte
/// account are read without the lock.
///
/// clang's thread safety analysis checks the lock for members of this class and for functions that take a RankState.
class RankState {
 public:
  RankLock mutex;
  /// Waits for a collective. The lock may be released meanwhile, so everything that it protects may have changed.
  void wait(Work& work);

  const std::shared_ptr<memory::ByteAccount> account = std::make_shared<memory::ByteAccount>();
  const std::shared_ptr<memory::ChargesOnce> kept_inputs = std::make_shared<memory::ChargesOnce>();
  const std::shared_ptr<HostCopies> host_copies = std::make_shared<HostCopies>();

  GroupId add(ParamGroup& group);
  void remove(GroupId id);
  /// Returns null if the group no longer exists.
  ParamGroup* group(GroupId id) const FSDP_REQUIRES(mutex);
  std::vector<ParamGroup*> groups() const FSDP_REQUIRES(mutex);

  /// Number of operators that took a sharded tensor.
  std::atomic<int64_t> intercepted_operators = 0;
  /// Groups whose rows this rank still reads although no scope or backward is open on them.
  std::map<GroupId, ParamGroup*> readers_at_rest;
  /// Number of writes to any group that every rank makes.
  uint64_t writes_by_all = 0;
  GroupTree tree FSDP_GUARDED_BY(mutex);
  std::vector<GroupId> residents;  ///< gathered groups and those being gathered, the least recently read first
  ReadHistory reads;
  /// The graph tasks that entered groups, by autograd's id. The pointers are shared because another thread may close a
  /// task while the task's own thread waits.
  std::map<int, std::shared_ptr<BackwardTask>> backwards FSDP_GUARDED_BY(mutex);
  /// Groups that have a reduction in flight, the oldest first.
  std::deque<GroupId> reducing FSDP_GUARDED_BY(mutex);
  /// The stream of gathers that wait for a user's event or that copy rows from host memory; made by the first one.
  std::optional<c10::Stream> gather_stream;
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
  /// State of a step of fsdp::join. If `has_data` is false, this rank's gradients are left out of the sums. The divisor
  /// of the sums is multiplied by `share_with_data`, the share of ranks that have data. The first of these ranks is
  /// `buffers_from`, whose buffers are broadcast.
  std::atomic<bool> has_data = true;
  double share_with_data = 1;
  int buffers_from FSDP_GUARDED_BY(mutex) = 0;
  bool keeps_files FSDP_GUARDED_BY(mutex) = false;  ///< true if some groups have rows in files
  /// Process groups of neighbours (see Placement::within) by their global ranks, so that each is made only once.
  std::map<std::vector<int>, std::shared_ptr<ProcessGroup>> neighbours;

 private:
  GroupId last_id_ FSDP_GUARDED_BY(mutex) = 0;
  std::unordered_map<GroupId, ParamGroup*> groups_ FSDP_GUARDED_BY(mutex);
};

}  // namespace fsdp::runtime
