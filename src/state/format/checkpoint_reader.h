#pragma once
/// \file
/// Reads tensor elements from a checkpoint's files.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "state/format/checkpoint_folder.h"

namespace fsdp::state {

/// Reads from a checkpoint's files. Opens each file when it is first needed and keeps it open. Not thread-safe.
class CheckpointReader {
 public:
  /// Opens the checkpoint that find_checkpoint finds at `path`. Throws FormatError.
  explicit CheckpointReader(const std::string& path);
  /// Uses `manifest` instead of reading it, since the manifest may be missing on this rank's disk.
  CheckpointReader(std::string path, Manifest manifest) : path_(std::move(path)), manifest_(std::move(manifest)) {}
  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  /// Reads elements of a tensor of the manifest into `out`, whose size must match. Chunks that contain some of
  /// the elements are read as a whole, so that their checksums can be compared. Throws FormatError.
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements, std::span<std::byte> out);

 private:
  const SafetensorsFile& file_of(const TensorPart& part);

  std::string path_;
  Manifest manifest_;
  std::map<std::string, SafetensorsFile> files_;
};

/// Returns the problems of a checkpoint, one string for each, or an empty list if all bytes are as they were written.
/// If a file is missing or has a wrong size or header, returns before it reads tensors. Otherwise reads all of them and
/// calls `on_read` after each piece of at most 16 MiB with the piece's number of bytes.
std::vector<std::string> problems_of(
    const std::string& checkpoint, const std::function<void(uint64_t)>& on_read = [](uint64_t) {});

}  // namespace fsdp::state
