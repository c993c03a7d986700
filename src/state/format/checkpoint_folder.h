#pragma once
/// \file
/// The folder of a run's checkpoints: `step-N` for each, `latest` with the name of the newest. A checkpoint is written
/// under another name, which it loses when it is complete: what has the name `step-N` can be read.

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

/// "step-000000000100"
std::string name_of_step(int64_t step);

/// The right to write checkpoints to a folder, which the system takes back when the process ends.
class FolderLock {
 public:
  /// Makes the folder if there is none. Throws FormatError if another job is writing to it, naming its process, or
  /// nobody can.
  explicit FolderLock(const std::string& folder);

 private:
  FileLock lock_;
};

/// Steps of the checkpoints that have their name, ascending; also of one that a save replaced before it ended, not of
/// those that were set aside.
std::vector<int64_t> complete_steps(const std::string& folder);
/// Names of what is there of checkpoints that were not completed.
std::vector<std::string> incomplete_names(const std::string& folder);

/// Makes an empty folder for a checkpoint of this step and returns its path; what earlier attempts left is removed, and
/// what is larger than the newest checkpoint is set aside as in keep_newest. Needs the lock.
std::string begin_step(const std::string& folder, int64_t step, const FolderLock& lock);
/// For those who write to a checkpoint that somebody else began: makes its folder, which is called `name`, if it is not
/// there because `folder` is on another disk. Returns the lock of that disk's folder to the one who made it.
std::optional<FolderLock> join_step(const std::string& folder, const std::string& name);
/// Writes the manifest, gives the checkpoint its name and points `latest` to it. A checkpoint of the same step is
/// replaced; it stays beside it until keep_newest. Needs the lock.
void name_step(const std::string& folder, const Manifest& manifest, const FolderLock& lock);
/// When the checkpoint of `step` has its name on every disk: removes the one that it replaced, gives those of larger
/// steps the names abandoned-step-N, and removes all but the newest `keep` (none: keeps all). Needs the lock.
void keep_newest(const std::string& folder, int64_t step, std::optional<int64_t> keep, const FolderLock& lock);
/// Removes what `begin_step` made. Throws nothing.
void abandon_step(const std::string& folder, int64_t step, const FolderLock& lock) noexcept;

/// The names of the checkpoints below `path`, the one to go on from first; "." if it is one itself. Empty if there is
/// no such folder, or none in it.
std::vector<std::string> checkpoint_names(const std::string& path);
/// The path of the first of these. Throws FormatError if there is none.
std::string find_checkpoint(const std::string& path);
/// Where on this disk the checkpoint of this path is, and the one that it replaced while other disks may have that.
std::vector<std::string> places_of(const std::string& checkpoint);
/// The text of `path`/manifest.json, and what it says. Throws FormatError, also where it is missing.
std::string read_manifest_text(const std::string& path);
Manifest read_manifest(const std::string& path);
/// Opens one of its files and compares it with the manifest: its size, its header. Throws FormatError; if it is not
/// there, with the host that wrote it where that is known.
SafetensorsFile open_file_of(const Manifest& manifest, const std::string& checkpoint, const std::string& name);

}  // namespace fsdp::state
