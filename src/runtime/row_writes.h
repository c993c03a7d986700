#pragma once
/// \file
/// Counters of the writes to a group's rows, and of the epochs in which this rank reads them.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::runtime {

/// The ranks that write rows: every rank, as in an optimizer step, or perhaps this rank alone, as in LocalRows.
enum class WriteKind : uint8_t { kEveryRank, kThisRank };

/// Counts writes, so that the ranks notice an optimizer step that only some of them make. The count is the number of
/// writes to the parameter that was written most often, so that ranks without rows of some parameters get the same
/// count.
class WriteCounts {
 public:
  /// Notes a write to the rows of one slot, or to those of all slots at once.
  void note(std::optional<size_t> slot) {
    if (!slot) {
      ++known_;
    } else {
      to_slot_.resize(std::max(to_slot_.size(), *slot + 1));
      most_to_slot_ = std::max(most_to_slot_, ++to_slot_[*slot]);
    }
  }
  /// Returns the number of writes so far, which is the same on every rank that ran the same program.
  uint32_t total() const { return known_ + most_to_slot_; }
  /// Returns `total()` for a gather or a scope, which sends it to the other ranks. Later writes to single slots then
  /// count as another update.
  uint32_t tell() {
    known_ = total();
    to_slot_.clear();
    most_to_slot_ = 0;
    return known_;
  }

 private:
  uint32_t known_ = 0;             // writes before the last `tell`, and later writes to all slots at once
  std::vector<uint32_t> to_slot_;  // number of writes to each single slot since the last `tell`
  uint32_t most_to_slot_ = 0;      // the largest number in `to_slot_`
};

/// Note [Readers and writers of rows]. Where ranks share memory, the whole parameters that a rank reads are the very
/// rows that other ranks write. Each rank therefore reads in epochs. A new epoch begins when a scope opens, and when a
/// backward follows a write. A rank that opens a scope marks itself as a reader and meets the other ranks in a barrier,
/// so that it sees all earlier writes. Before a rank writes, it waits for the peers that still read.
///
/// A rank reads until it writes rows of the group itself or begins a newer epoch. If no scope since the rank's last
/// write has left a graph, the rank stops reading as soon as the scope closes. So no rank has to know how long a graph
/// lives: ranks that run the same program all come to the write, and a rank that writes alone (LocalRows) waits for the
/// peers' next scope.
///
/// A write that every rank makes, as in an optimizer step, also ends the rank's reading of all other groups that have
/// no open scope or backward. The ranks then wait for each other at the first group of the step and not at each. A
/// backward after such a write, whichever group it wrote, begins a newer epoch, in which the ranks meet again.
///
/// If some rank has no rows of the group, that rank may never write. Then no rank reads after a scope or a backward has
/// closed, and the ranks meet in each backward.
struct ReadEpochs {
  bool counts_writes = true;            // true if every rank has rows; a rank without rows may skip hand-made updates
  bool reads = false;                   // this rank is marked as a reader
  bool is_open = false;                 // a scope or a backward is open
  bool has_graph = false;               // a scope that has closed since this rank's last write may have left a graph
  uint64_t epoch_read = 0;              // epoch in which this rank is or was marked as a reader
  uint64_t scopes = 0;                  // number of scopes opened so far, the same on every rank
  uint64_t backwards_after_writes = 0;  // number of backwards after a write since the last scope opened
  bool is_written_by_all = false;       // every rank has written since the last scope or backward opened
  uint64_t writes_seen = 0;             // RankState::writes_by_all when the last scope or backward opened
  bool has_to_meet = false;             // the ranks must meet before the open backward reads
  uint64_t written_in_epoch = UINT64_MAX;  // epoch whose readers this rank has already waited for
};

}  // namespace fsdp::runtime
