#pragma once
/// \file
/// A checkpoint that ranks write together: to the disk that all of them see, or to several, of which each gets what its
/// ranks write.

#include <fsdp/checkpoint.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "state/format/checkpoint_folder.h"
#include "state/ranks.h"

namespace fsdp::state {

/// On one rank. What is not complete when it goes is removed. On each disk one rank has the folder's lock; it completes
/// the checkpoint there.
class SharedStep {
 public:
  /// Rank 0 makes the checkpoint's folder in the one that the ranks' call is about, and all that is there of earlier
  /// attempts goes. Collective.
  SharedStep(SaveOptions options, const Ranks& ranks);
  ~SharedStep();
  SharedStep(SharedStep&&) = default;
  SharedStep& operator=(SharedStep&&) = delete;

  /// Where this rank writes.
  const std::string& path() const { return path_; }
  /// Whether this rank completes what is on its disk, and whether there are others.
  bool completes() const { return lock_ != nullptr; }
  bool is_spread() const { return completing_.size() > 1; }

  /// Runs `write` where there is a folder to write to, on each disk. Once; collective.
  void write(const Ranks& ranks, const std::function<void()>& write);
  /// Gives the checkpoint its name on this disk, if this rank is to. Not collective: for a checkpoint on one disk.
  void complete_here(Manifest manifest);
  /// The same on all disks. `part`: what write() of checkpoint_part.h returned on this rank, which goes to those that
  /// complete the checkpoint. An earlier checkpoint goes from no disk before this one is on all. Collective.
  void complete(const std::string& part, const Ranks& ranks);

 private:
  std::string folder_, path_;
  SaveOptions options_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<int> completing_ = {0};  // ranks, one for each disk
};

}  // namespace fsdp::state
