#pragma once
/// \file
/// The folder of a run's checkpoints: `step-N` for each, `latest` with the name of the newest. A checkpoint is written
/// under another name, which it loses when it is complete: what has the name `step-N` can be read.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "state/format/manifest.h"
#include "state/format/safetensors.h"

namespace fsdp::state {

inline constexpr char kManifestName[] = "manifest.json";

/// "step-000000000100"
std::string name_of_step(int64_t step);

/// The right to write checkpoints to a folder, which the system takes back when the process ends.
class FolderLock {
 public:
  /// Makes the folder if there is none. Throws FormatError if another job is writing to it, or nobody can.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

/// Steps of the checkpoints that have their name, ascending.
std::vector<int64_t> complete_steps(const std::string& folder);
/// Names of what is there of checkpoints that were not completed.
std::vector<std::string> incomplete_names(const std::string& folder);

/// Makes an empty folder for a checkpoint of this step and returns its path; what earlier attempts left is removed.
/// Needs the lock.
std::string begin_step(const std::string& folder, int64_t step, const FolderLock& lock);
/// Writes the manifest, gives the checkpoint its name, points `latest` to it and removes all but the newest `keep`
/// (none: keeps all). A checkpoint of the same step is replaced. Needs the lock.
void complete_step(const std::string& folder, const Manifest& manifest, std::optional<int64_t> keep,
                   const FolderLock& lock);
/// Removes what `begin_step` made. Throws nothing.
void abandon_step(const std::string& folder, int64_t step, const FolderLock& lock) noexcept;

/// The path of the checkpoint to go on from: of `path` itself if it has a manifest, else of the newest one in it.
/// Throws FormatError if there is none.
std::string find_checkpoint(const std::string& path);
/// Reads `path`/manifest.json.
Manifest read_manifest(const std::string& path);
/// Opens one of its files and compares it with the manifest: its size, its header. Throws FormatError.
SafetensorsFile open_file_of(const Manifest& manifest, const std::string& checkpoint, const std::string& name);

}  // namespace fsdp::state
