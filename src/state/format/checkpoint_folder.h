#pragma once
/// \file
/// The folder of a run's checkpoints: `step-N` for each checkpoint, and `latest` with the name of the newest. A
/// checkpoint is written under a temporary name and renamed when it is complete, so every `step-N` can be read.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "state/format/file_lock.h"
#include "state/format/manifest.h"
#include "state/format/safetensors.h"

namespace fsdp::state {

inline constexpr char kManifestName[] = "manifest.json";

/// The name of a step's folder, e.g. "step-000000000100".
std::string name_of_step(int64_t step);

/// The lock of a folder for writing checkpoints. The kernel releases it when the process ends.
class FolderLock {
 public:
  /// Creates the folder if necessary. Throws FormatError if another job is writing to it, naming the job's process, or
  /// if the folder cannot be written to.
  explicit FolderLock(const std::string& folder);

 private:
  FileLock lock_;
};

/// Steps of the complete checkpoints, in ascending order. They include a checkpoint that an interrupted save replaced,
/// but not abandoned ones.
std::vector<int64_t> complete_steps(const std::string& folder);
/// Names of the folders of incomplete checkpoints.
std::vector<std::string> incomplete_names(const std::string& folder);

/// Creates an empty folder for a checkpoint of this step and returns its path. Removes what earlier attempts left, and
/// renames checkpoints beyond the newest as keep_newest does. Needs the lock.
std::string begin_step(const std::string& folder, int64_t step, const FolderLock& lock);
/// Called by the ranks that did not call begin_step: creates the checkpoint's folder `name` if it is missing, i.e. if
/// `folder` is on another disk. Returns that disk's lock to the rank that created it.
std::optional<FolderLock> join_step(const std::string& folder, const std::string& name);
/// Writes the manifest, renames the checkpoint to its final name and updates `latest`. An existing checkpoint of the
/// same step is replaced, but kept beside it until keep_newest. Needs the lock.
void name_step(const std::string& folder, const Manifest& manifest, const FolderLock& lock);
/// To be called when the checkpoint of `step` has its final name on every disk. Removes the checkpoint that it
/// replaced, renames those of larger steps to abandoned-step-N, and removes all but the newest `keep` (unset: none).
/// Needs the lock.
void keep_newest(const std::string& folder, int64_t step, std::optional<int64_t> keep, const FolderLock& lock);
/// Removes the folder that `begin_step` created.
void abandon_step(const std::string& folder, int64_t step, const FolderLock& lock) noexcept;

/// Names of the checkpoints in `path`, the one to resume from first; "." if `path` is a checkpoint itself. Empty if the
/// folder does not exist or has none.
std::vector<std::string> checkpoint_names(const std::string& path);
/// The path of the checkpoint to resume from. Throws FormatError if there is none.
std::string find_checkpoint(const std::string& path);
/// The existing paths of a checkpoint on this disk: its own, and that of the checkpoint that it replaced, as long as
/// other disks may need it.
std::vector<std::string> places_of(const std::string& checkpoint);
/// The text of `path`/manifest.json, and its contents. Throw FormatError, also if the file is missing.
std::string read_manifest_text(const std::string& path);
Manifest read_manifest(const std::string& path);
/// Opens a file of the checkpoint and compares its size and header with the manifest. Throws FormatError; for a missing
/// file it names the host that wrote it, if known.
SafetensorsFile open_file_of(const Manifest& manifest, const std::string& checkpoint, const std::string& name);

}  // namespace fsdp::state
