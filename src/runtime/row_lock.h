#pragma once
/// \file
/// When this rank may read and write the rows of a group, and what the other ranks are told of its writes.

#include <fsdp/communicator.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/group_identity.h"
#include "runtime/param_slot.h"

namespace fsdp::runtime {

/// Who writes rows: every rank, as optimizers do, or perhaps this one alone.
enum class WriteKind : uint8_t { kEveryRank, kThisRank };

/// The writes that ranks compare, so that an optimizer step which only some of them make is found: the most that any
/// one parameter was written, so that ranks without rows of some parameters count alike.
class WriteCounts {
 public:
  /// The rows of one slot are about to be written, or those of all slots at once.
  void note(std::optional<size_t> slot) {
    if (!slot) {
      ++to_all_slots_;
    } else {
      to_slot_.resize(std::max(to_slot_.size(), *slot + 1));
      most_to_slot_ = std::max(most_to_slot_, ++to_slot_[*slot]);
    }
    if (to_all_slots_ + most_to_slot_ <= since_taken_) return;
    ++since_taken_;
    ++total_;
  }
  /// Returns the writes since it was called last, by a gather or a scope, which tells the other ranks.
  uint32_t take() {
    to_slot_.clear();
    to_all_slots_ = most_to_slot_ = 0;
    return std::exchange(since_taken_, 0);
  }
  /// What was taken did not reach the other ranks.
  void give_back(uint32_t writes) { since_taken_ += writes; }
  /// All writes that were counted, the same on every rank that ran the same program.
  int64_t total() const { return total_; }

 private:
  uint32_t since_taken_ = 0;
  int64_t total_ = 0;
  // Since the last `take`: writes to all slots at once, the others to each slot, and the most of these.
  uint32_t to_all_slots_ = 0;
  std::vector<uint32_t> to_slot_;
  uint32_t most_to_slot_ = 0;
};

/// Note [Readers and writers of rows]. Where ranks share memory, whole parameters are the rows that their owners write.
/// Reading takes place in epochs: scopes, and in them backwards that follow a write. A scope that opens says that this
/// rank reads, then meets the other ranks, so that all earlier writes are there. The first write after it waits for the
/// peers that still read. A rank reads until it writes rows of the group itself, or opens a newer epoch; a scope that
/// leaves no graph behind, and follows none since that write, ends the reading as it closes. So a graph that may still
/// run backward reads what its forward read, without anybody having to know whether it was kept, dropped or consumed:
/// ranks that run one program all come to the write, and who writes alone (LocalRows) waits for the peers' next scope.
/// The first write that every rank makes ends all of the rank's reading but that of open scopes and backwards, so that
/// ranks which step an optimizer meet at one group and not at each. A backward after such a write, to whichever group,
/// reads in a newer epoch, in which the ranks meet again. Where some rank has no rows, which then need not write,
/// nobody reads after a scope or a backward has closed, and each backward meets the ranks.
///
/// Where ranks share no memory there are no buffers, and nothing waits. Thread safety: under the rank's lock.
class RowLock {
 public:
  /// `counts_writes`: every rank has rows; else an update by hand may leave out ranks.
  RowLock(const GroupIdentity& group, bool counts_writes) : group_(group), counts_writes_(counts_writes) {}
  ~RowLock() { end_read(); }
  RowLock(const RowLock&) = delete;
  RowLock& operator=(const RowLock&) = delete;

  /// The group's rows lie in `buffer`, which outlives this object.
  void add(SharedBuffer& buffer) { buffers_.push_back(&buffer); }

  /// A scope opens on the group. Returns whether the ranks must meet before they read.
  bool begin_scope();
  /// Takes begin_scope back, because the ranks did not meet: each rank must have counted the same scopes.
  void cancel_scope();
  /// A backward begins: it reads what its scope saw, and what every rank has written since. Returns whether there is
  /// such a write, which is in nothing that was read before.
  bool begin_backward();
  /// The last scope or backward on `slots` has closed. `has_recorded`: autograd may have recorded what read them.
  void end_scopes(const std::vector<ParamSlot>& slots, bool has_recorded);
  /// This rank writes, or forgets its iteration: no graph from before reads any more.
  void end_read();

  /// Where ranks share memory: before this backward reads, all of them have to be in it, so that their writes are
  /// there.
  void meet_before_reading() { has_to_meet_ = meets(); }
  bool has_to_meet() const { return has_to_meet_; }
  void note_met() { has_to_meet_ = false; }

  /// Lets peers write: this rank is about to. Call it for all groups that are written together before waiting for the
  /// first, or ranks meet at each of them. Throws UsageError in a scope or a backward of another thread.
  void begin_write();
  /// The same, and waits until no peer reads the rows, without the rank's lock. Returns whether it did, so that others
  /// may have done something meanwhile.
  bool wait_to_write();
  /// Call before rows are written, those of one slot or of all; waits to write.
  void note_write(WriteKind kind, std::optional<size_t> slot = std::nullopt);
  /// What was written since `note_write` counts too. Waits for nobody.
  void end_write() { ++version_; }
  /// Changes with each write.
  int64_t version() const { return version_; }
  /// The writes that every rank makes.
  WriteCounts& writes() { return writes_; }
  /// Forgets an iteration.
  void reset() { writes_ = {}; }

  /// Threads that open a scope and wait for the other ranks: until they have entered, this rank reads.
  int openings = 0;

 private:
  uint64_t epoch() const { return (scopes_ << 32) + backwards_after_writes_; }
  bool meets() const { return !buffers_.empty() && group_.placement.shard().world_size() > 1; }
  void begin_read();
  void end_reads_at_rest();

  const GroupIdentity& group_;
  const bool counts_writes_;
  std::vector<SharedBuffer*> buffers_;
  bool reads_ = false;
  bool is_open_ = false;    // a scope or a backward
  bool has_graph_ = false;  // since this rank wrote last, a scope has closed that may have left a graph
  uint64_t epoch_read_ = 0;
  WriteCounts writes_;
  int64_t version_ = 0;
  uint64_t scopes_ = 0;                     // opened so far, the same on every rank
  uint64_t backwards_after_writes_ = 0;     // since the last scope opened
  bool is_written_by_all_ = false;          // since the last scope or backward opened
  uint64_t writes_seen_ = 0;                // to any group, when the last scope or backward opened
  bool has_to_meet_ = false;                // before this backward reads
  uint64_t written_in_epoch_ = UINT64_MAX;  // whose readers no longer keep this rank from writing
};

}  // namespace fsdp::runtime
