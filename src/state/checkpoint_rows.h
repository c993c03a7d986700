#pragma once
/// \file
/// Reads a checkpoint on several ranks, from the disks that they can access.

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

/// The end of an error message. It follows the folder's name.
inline constexpr char kChanged[] = ": the checkpoints in this folder changed while they were being read. Load again";

/// A checkpoint as one rank reads it. If all ranks see the same files, each rank reads its rows and the ranks do not
/// communicate. Otherwise some tensors are sent: for each file of such a tensor, the lowest rank that sees the file
/// broadcasts the elements.
class CheckpointRows {
 public:
  /// Returns the newest checkpoint that the ranks together can read, even if no single disk has all of its files, or
  /// null if there is none. Checkpoints that rank 0 sees are tried first. Collective. Throws Error on every rank if any
  /// rank fails, e.g. because a manifest is damaged.
  static std::unique_ptr<CheckpointRows> find(const std::string& folder, const Ranks& ranks);

  /// The checkpoint's path on this rank's disk. The checkpoint may be incomplete or missing there.
  const std::string& path() const { return reader_.path(); }
  const Manifest& manifest() const { return reader_.manifest(); }

  /// Elements of a tensor that this rank needs.
  struct Wanted {
    const TensorRecord* tensor;
    ElementRange elements;
  };
  /// Announces the elements that this rank will read. Call it before `read`. Collective.
  void announce(const std::vector<Wanted>& wanted);
  /// Returns true if the tensor's elements are sent between ranks. Every rank must then call `read` for this tensor,
  /// even if it needs none of the elements, and all ranks must read such tensors in the same order.
  bool is_sent(const TensorRecord& tensor) const { return sent_.contains(&tensor); }
  /// Reads elements into `out`. Collective for tensors that are sent. If all ranks see the same files, throws errors
  /// (FormatError) at once. Otherwise other ranks may be waiting for this rank, so `finish` throws them.
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements, std::span<std::byte> out);
  /// Throws the first error that `read` postponed, if there is one.
  void finish() const { error_.rethrow(); }

 private:
  // The ranks that see a file: the lowest of them, whether all ranks see it, and whether this rank does.
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
  const bool is_alike_;  // true if all ranks see the same files
  // The tensors of which some rank needs elements in files that it does not see.
  std::unordered_set<const TensorRecord*> sent_;
  FirstError error_;
};

}  // namespace fsdp::state
