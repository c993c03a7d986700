#pragma once
/// \file
/// The folder of a run's checkpoints. It contains a folder `step-N` for each checkpoint, and the file `latest` with the
/// name of the newest. A checkpoint is written under a temporary name and renamed when it is complete, so every
/// `step-N` can be read.

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

/// Returns the name of a step's folder, e.g. "step-000000000100".
std::string name_of_step(int64_t step);

/// The lock that a process holds while it writes checkpoints to a folder. The kernel releases the lock when the process
/// ends.
class FolderLock {
 public:
  /// Creates the folder if necessary and locks it. Throws FormatError if the folder cannot be written to, or if another
  /// job holds the lock; the message then names the process of that job.
  explicit FolderLock(const std::string& folder);

 private:
  FileLock lock_;
};

/// Returns the steps of the complete checkpoints, in ascending order. They include a checkpoint that an interrupted
/// save was replacing, but not the checkpoints named abandoned-step-N.
std::vector<int64_t> complete_steps(const std::string& folder);
/// Returns the names of the folders of incomplete checkpoints.
std::vector<std::string> incomplete_names(const std::string& folder);

/// Creates an empty folder for a checkpoint of this step and returns its path. First removes the files of interrupted
/// saves, and renames checkpoints whose steps are larger than that of the newest checkpoint to abandoned-step-N. The
/// caller must hold the lock.
std::string begin_step(const std::string& folder, int64_t step, const FolderLock& lock);
/// The ranks that did not call begin_step call this function. If the checkpoint's folder `name` is missing, `folder` is
/// on another disk: one of its ranks then creates `name` there and gets that disk's lock. All other ranks get nullopt.
std::optional<FolderLock> join_step(const std::string& folder, const std::string& name);
/// Writes the manifest, renames the checkpoint to its final name and updates `latest`. An existing checkpoint of the
/// same step is renamed to replaced-step-N, which keep_newest removes. The caller must hold the lock.
void name_step(const std::string& folder, const Manifest& manifest, const FolderLock& lock);
/// Removes the checkpoint that the checkpoint of `step` replaced, renames the checkpoints of larger steps to
/// abandoned-step-N, and removes all but the newest `keep` checkpoints; if `keep` is not set, all of them stay. Call it
/// when the checkpoint of `step` has its final name on every disk. The caller must hold the lock.
void keep_newest(const std::string& folder, int64_t step, std::optional<int64_t> keep, const FolderLock& lock);
/// Removes the folder that `begin_step` created.
void abandon_step(const std::string& folder, int64_t step, const FolderLock& lock) noexcept;

/// Returns the names of the checkpoints in `path`, the one to resume from first, or "." if `path` is a checkpoint
/// itself. Returns an empty list if the folder does not exist or has no checkpoint.
std::vector<std::string> checkpoint_names(const std::string& path);
/// Returns the path of the checkpoint to resume from. Throws FormatError if there is none.
std::string find_checkpoint(const std::string& path);
/// Returns the paths under which a checkpoint exists on this disk: its own path, and replaced-step-N as long as other
/// disks may need the older checkpoint.
std::vector<std::string> places_of(const std::string& checkpoint);
/// Return the text of `path`/manifest.json, and the manifest parsed from it. Both throw FormatError if the file is
/// missing, and read_manifest also if the text is invalid.
std::string read_manifest_text(const std::string& path);
Manifest read_manifest(const std::string& path);
/// Opens a file of the checkpoint. Throws FormatError if its size or header differs from the manifest, or if it is
/// missing; the message then names the host that wrote the file, if the manifest does.
SafetensorsFile open_file_of(const Manifest& manifest, const std::string& checkpoint, const std::string& name);

}  // namespace fsdp::state
