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
  /// Rank 0 makes the checkpoint's folder, all that is there of earlier attempts goes. Collective.
  SharedStep(std::string folder, SaveOptions options, const Ranks& ranks, const std::string& operation);
  ~SharedStep();
  SharedStep(SharedStep&&) = default;
  SharedStep& operator=(SharedStep&&) = delete;

  /// Where this rank writes.
  const std::string& path() const { return path_; }
  /// Whether this rank completes what is on its disk, and whether there are others.
  bool completes() const { return lock_ != nullptr; }
  bool is_spread() const { return is_spread_; }

  /// Runs `write` where there is a folder to write to, on each disk, and returns what it returned, by rank. Once;
  /// collective.
  std::vector<std::string> write(const Ranks& ranks, const std::string& operation,
                                 const std::function<std::string()>& write);
  /// Gives the checkpoint its name on this disk, if this rank is to. `parts`: what write() of checkpoint_part.h
  /// returned on each rank. Not collective: for a checkpoint on one disk.
  void complete_here(const std::vector<std::string>& parts);
  /// The same on all disks. An earlier checkpoint goes from none of them before this one is on all. Collective.
  void complete(const std::vector<std::string>& parts, const Ranks& ranks, const std::string& operation);

 private:
  std::string folder_, path_;
  SaveOptions options_;
  std::unique_ptr<FolderLock> lock_;
  bool is_spread_ = false;
};

}  // namespace fsdp::state
