#pragma once
/// \file
/// A checkpoint that ranks write together, to one disk that all of them see, or to several disks, each with the rows of
/// its ranks.

#include <fsdp/checkpoint.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "state/format/checkpoint_folder.h"
#include "state/ranks.h"

namespace fsdp::state {

/// One rank's view of the checkpoint. The destructor removes it if it is incomplete. On each disk one rank has the
/// folder's lock and completes the checkpoint there.
class SharedStep {
 public:
  /// Rank 0 creates the checkpoint's folder in ranks.path() and removes what earlier attempts left. Collective.
  SharedStep(SaveOptions options, const Ranks& ranks);
  ~SharedStep();
  SharedStep(SharedStep&&) = default;
  SharedStep& operator=(SharedStep&&) = delete;

  /// The folder to which this rank writes.
  const std::string& path() const { return path_; }
  /// Whether this rank completes the checkpoint on its disk; and whether there are several disks.
  bool completes() const { return lock_ != nullptr; }
  bool is_spread() const { return completing_.size() > 1; }

  /// Creates missing folders on other disks and calls `write`. Call it once. Collective.
  void write(const Ranks& ranks, const std::function<void()>& write);
  /// Renames the checkpoint to its final name if this rank completes it. Not collective; for a checkpoint on one disk.
  void complete_here(Manifest manifest);
  /// Completes the checkpoint on all disks. `part` is what write() of checkpoint_part.h returned on this rank; it is
  /// sent to the ranks that complete the checkpoint. Earlier checkpoints are removed only when this one is on all
  /// disks. Collective.
  void complete(const std::string& part, const Ranks& ranks);

 private:
  std::string folder_, path_;
  SaveOptions options_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<int> completing_ = {0};  // ranks, one per disk
};

}  // namespace fsdp::state
