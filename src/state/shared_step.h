#pragma once
/// \file
/// A checkpoint that ranks write together. They write it to one disk that all of them see, or to several disks, each of
/// which gets the rows of the ranks that see it.

#include <fsdp/checkpoint.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "state/format/checkpoint_folder.h"
#include "state/ranks.h"

namespace fsdp::state {

/// One rank's view of the checkpoint. On each disk, one rank has the folder's lock and completes the checkpoint there.
/// If the checkpoint is incomplete, the destructor of that rank's object removes it.
class SharedStep {
 public:
  /// Rank 0 creates the checkpoint's folder in ranks.path() and removes the files of interrupted saves. Collective.
  SharedStep(SaveOptions options, const Ranks& ranks);
  ~SharedStep();
  SharedStep(SharedStep&&) = default;
  SharedStep& operator=(SharedStep&&) = delete;

  /// The folder to which this rank writes.
  const std::string& path() const { return path_; }
  /// Returns true if this rank completes the checkpoint on its disk. Known after `write`.
  bool completes() const { return lock_ != nullptr; }
  /// Returns true if the ranks write to several disks. Known after `write`.
  bool is_spread() const { return completing_.size() > 1; }

  /// Creates the checkpoint's folder on disks that lack it, and calls the function `write`. Call it once. Collective.
  void write(const Ranks& ranks, const std::function<void()>& write);
  /// Renames the checkpoint to its final name on this rank's disk, if this rank completes it. If there is only one
  /// disk, also removes older checkpoints (see keep_newest) and releases the lock. Not collective.
  void complete_here(Manifest manifest);
  /// Completes the checkpoint on all disks. `part` is the text that write() of checkpoint_part.h returned on this rank;
  /// this function sends it to the ranks that complete the checkpoint. Earlier checkpoints are removed only when this
  /// one is complete on all disks. Collective.
  void complete(const std::string& part, const Ranks& ranks);

 private:
  std::string folder_, path_;
  SaveOptions options_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<int> completing_ = {0};  // the ranks that complete the checkpoint, one for each disk
};

}  // namespace fsdp::state
