#pragma once
/// \file
/// What a group counts of the writes to its rows, and of the epochs in which it reads them.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::runtime {

/// Who writes rows: every rank, as optimizers do, or perhaps this one alone.
enum class WriteKind : uint8_t { kEveryRank, kThisRank };

/// What ranks count of a group, for messages.
constexpr std::string_view kWritesToRows = "writes to the rows (optimizer steps)";

/// The writes that ranks compare, so that an optimizer step which only some of them make is found: the most that any
/// one parameter was written, so that ranks without rows of some parameters count alike.
class WriteCounts {
 public:
  /// The rows of one slot are about to be written, or those of all slots at once.
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
  /// Returns the same number, for a gather or a scope that sends it to the other ranks. A later write begins a new
  /// update.
  uint32_t tell() {
    known_ = total();
    to_slot_.clear();
    most_to_slot_ = 0;
    return known_;
  }

 private:
  uint32_t known_ = 0;             // writes before the last `tell`, and later writes to all slots at once
  std::vector<uint32_t> to_slot_;  // since the last `tell`: the writes to each slot alone
  uint32_t most_to_slot_ = 0;      // the largest number among them
};

/// Note [Readers and writers of rows]. Where ranks share memory, whole parameters are the rows that their owners write.
/// Reading takes place in epochs: scopes, and in them backwards that follow a write. A scope that opens says that this
/// rank reads, then meets the other ranks, so that all earlier writes are there. The first write after it waits for the
/// peers that still read. A rank reads until it writes rows of the group itself, or opens a newer epoch; a scope that
/// leaves no graph behind, and follows none since that write, ends the reading as it closes. So nobody has to know what
/// became of a graph: ranks that run one program all come to the write, and who writes alone (LocalRows) waits for the
/// peers' next scope. The first write that every rank makes ends all of the rank's reading but that of open scopes and
/// backwards, so that ranks which step an optimizer meet at one group and not at each. A backward after such a write,
/// to whichever group, reads in a newer epoch, in which the ranks meet again. Where some rank has no rows, which then
/// need not write, nobody reads after a scope or a backward has closed, and each backward meets the ranks.
struct ReadEpochs {
  bool counts_writes = true;  // every rank has rows; else an update by hand may leave out ranks
  bool reads = false;
  bool is_open = false;    // a scope or a backward
  bool has_graph = false;  // since this rank wrote last, a scope has closed that may have left a graph
  uint64_t epoch_read = 0;
  uint64_t scopes = 0;                     // opened so far, the same on every rank
  uint64_t backwards_after_writes = 0;     // since the last scope opened
  bool is_written_by_all = false;          // since the last scope or backward opened
  uint64_t writes_seen = 0;                // to any group, when the last scope or backward opened
  bool has_to_meet = false;                // before this backward reads
  uint64_t written_in_epoch = UINT64_MAX;  // whose readers no longer keep this rank from writing
};

}  // namespace fsdp::runtime
