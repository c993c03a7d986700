#pragma once
/// \file
/// When this rank may read and write the rows of a group, and what the other ranks are told of its writes.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/group_identity.h"
#include "runtime/param_slot.h"
#include "runtime/reading.h"
#include "runtime/write_counts.h"

namespace fsdp::runtime {

/// Who writes rows: every rank, as optimizers do, or perhaps this one alone.
enum class WriteKind : uint8_t { kEveryRank, kThisRank };

/// See Note [Whose turn it is]. Reading takes place in epochs: scopes, and in them backwards that follow a write.
/// Thread safety: under the rank's lock.
class Turns {
 public:
  /// `counts_writes`: every rank has rows; else an update by hand may leave out ranks.
  Turns(const GroupIdentity& group, bool counts_writes) : group_(group), counts_writes_(counts_writes) {}
  ~Turns() { reading_->close(); }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  Reading& reading() const { return *reading_; }

  /// A scope opens on the group; true if the ranks must meet before they read.
  bool begin_scope();
  /// The ranks did not meet, so that every rank has counted the same scopes.
  void cancel_scope();
  /// A backward begins: it reads what its scope saw, and what every rank has written since. Returns whether there is
  /// such a write, which is in nothing that was read before.
  bool begin_backward();
  /// The last scope or backward on `slots` has closed: this rank reads on while a graph may. `is_hidden`: see Reading.
  void end_scopes(const std::vector<ParamSlot>& slots, bool is_hidden);

  /// Where ranks share memory: before this backward reads, all of them have to be in it, so that their writes are
  /// there.
  void meet_before_reading() { has_to_meet_ = meets(); }
  bool has_to_meet() const { return has_to_meet_; }
  void note_met() { has_to_meet_ = false; }

  /// Waits until no peer reads the rows, without the rank's lock. Returns whether it did, so that others may have done
  /// something meanwhile. Throws UsageError in a scope or a backward of another thread.
  bool wait_to_write();
  /// Call before rows are written, those of one slot or of all; waits to write.
  void note_write(WriteKind kind, std::optional<size_t> slot = std::nullopt);
  /// What was written since `note_write` counts too. Waits for nobody.
  void end_write() { ++version_; }
  /// Changes with each write.
  int64_t version() const { return version_; }
  /// Of writes that every rank makes.
  WriteCounts& writes() { return writes_; }

  /// Forgets an iteration.
  void reset() { writes_ = {}; }

  /// Threads that open a scope and wait for the other ranks: until they have entered, this rank reads.
  int openings = 0;

 private:
  uint64_t epoch() const { return (scopes_ << 32) + backwards_after_writes_; }
  bool meets() const { return reading_->is_shared() && group_.placement.shard().world_size() > 1; }

  const GroupIdentity& group_;
  const std::shared_ptr<Reading> reading_ = std::make_shared<Reading>();
  const bool counts_writes_;
  WriteCounts writes_;
  int64_t version_ = 0;
  uint64_t scopes_ = 0;                     // opened so far, the same on every rank
  uint64_t backwards_after_writes_ = 0;     // since the last scope opened
  bool is_written_by_all_ = false;          // since the last scope or backward opened
  bool has_to_meet_ = false;                // where ranks share memory: before this backward reads
  uint64_t written_in_epoch_ = UINT64_MAX;  // whose readers no longer keep this rank from writing
};

}  // namespace fsdp::runtime
