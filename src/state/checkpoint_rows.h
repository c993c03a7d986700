#pragma once
/// \file
/// Elements of the checkpoint that ranks load together, from the disks that they see.

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

/// What errors say after the folder.
inline constexpr char kChanged[] = ": its checkpoints changed while they were looked at. Load again";

/// On one rank. Where all ranks see the same files, each reads its rows and nothing is communicated. Else what a rank
/// wants of a file that it does not see comes from the lowest rank that does.
class CheckpointRows {
 public:
  /// Chooses the newest checkpoint that the ranks can read, wherever its files are: rank 0's disk first. Null if there
  /// is none. Collective. Throws an Error on every rank, also for one that is damaged.
  static std::unique_ptr<CheckpointRows> find(const std::string& folder, const Ranks& ranks);

  /// As this rank has it, or would.
  const std::string& path() const { return reader_.path(); }
  const Manifest& manifest() const { return reader_.manifest(); }

  /// Elements of a tensor of the manifest.
  struct Wanted {
    const TensorRecord* tensor;
    ElementRange elements;
  };
  /// Before reading: what this rank will read. Collective.
  void announce(const std::vector<Wanted>& wanted);
  /// Whether every rank has to read of it, in the same order of tensors, though it may want no elements.
  bool is_sent(const TensorRecord& tensor) const { return sent_.contains(&tensor); }
  /// Fills `out`. Collective for tensors that are sent. Throws FormatError, or keeps it for `finish` where others would
  /// wait for this rank.
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements, std::span<std::byte> out);
  /// Throws what went wrong.
  void finish() const { error_.rethrow(); }

 private:
  // Who sees a file: the lowest rank, and whether all do, and this one.
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
  const bool is_alike_;  // all ranks see the same files
  // Tensors that some rank cannot read by itself.
  std::unordered_set<const TensorRecord*> sent_;
  FirstError error_;
};

}  // namespace fsdp::state
