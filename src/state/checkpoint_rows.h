#pragma once
/// \file
/// Reading of a checkpoint by several ranks, from the disks that they can access.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "comm/core/check.h"
#include "state/format/checkpoint_reader.h"
#include "state/ranks.h"

namespace fsdp::state {

/// End of an error message, after the folder's name.
inline constexpr char kChanged[] = ": the checkpoints in this folder changed while they were being read. Load again";

/// A checkpoint as one rank reads it. If all ranks see the same files, each reads its rows and nothing is communicated.
/// Otherwise the lowest rank that sees a file sends its elements to the ranks that need them and do not see it.
class CheckpointRows {
 public:
  /// Finds the newest checkpoint that the ranks together can read, whichever disks have its files; names on rank 0's
  /// disk come first. Null if there is none. Collective. Throws Error on every rank, also for a damaged checkpoint.
  static std::unique_ptr<CheckpointRows> find(const std::string& folder, const Ranks& ranks);

  /// The path on this rank's disk, where the checkpoint may be incomplete or missing.
  const std::string& path() const { return reader_.path(); }
  const Manifest& manifest() const { return reader_.manifest(); }

  /// Elements of a tensor that a rank wants.
  struct Wanted {
    const TensorRecord* tensor;
    ElementRange elements;
  };
  /// Announces what this rank will read. Call it before `read`. Collective.
  void announce(const std::vector<Wanted>& wanted);
  /// Whether the tensor's elements are sent between ranks. Then every rank must call `read` for the tensor, in the same
  /// order of tensors, even if it wants no elements.
  bool is_sent(const TensorRecord& tensor) const { return sent_.contains(&tensor); }
  /// Reads elements into `out`. Collective for tensors that are sent. Throws FormatError, but if other ranks wait for
  /// this one, `finish` throws it instead.
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements, std::span<std::byte> out);
  /// Throws the first error of `read` that was postponed.
  void finish() const { error_.rethrow(); }

 private:
  // The ranks that see a file: the lowest one, whether all do, and whether this one does.
  struct Sight {
    std::optional<int> lowest;
    bool all = true, own = false;
  };
  using Sights = std::unordered_map<std::string, Sight>;

  CheckpointRows(CheckpointReader reader, Sights sights, const Ranks& ranks);
  void send(const std::string& name, const TensorRecord& tensor, const TensorPart& part, ElementRange elements,
            std::span<std::byte> out);

  CheckpointReader reader_;
  const Sights sights_;
  const Ranks ranks_;
  const bool is_alike_;  // whether all ranks see the same files
  // Tensors that some rank cannot read itself.
  std::unordered_set<const TensorRecord*> sent_;
  FirstError error_;
};

}  // namespace fsdp::state
