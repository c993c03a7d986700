#pragma once
/// \file
/// Reading of tensor elements from a checkpoint's files.

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

/// Opens files when they are first needed and keeps them open. One thread.
class CheckpointReader {
 public:
  /// `path` is resolved by find_checkpoint. Throws FormatError.
  explicit CheckpointReader(const std::string& path);
  /// Reads a checkpoint whose manifest is known and may be missing on this disk.
  CheckpointReader(std::string path, Manifest manifest) : path_(std::move(path)), manifest_(std::move(manifest)) {}
  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  /// Reads elements of a tensor of the manifest into `out` and compares the checksums of all chunks that they touch,
  /// for which it reads these chunks completely. Throws FormatError.
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements, std::span<std::byte> out);

 private:
  const SafetensorsFile& file_of(const TensorPart& part);

  std::string path_;
  Manifest manifest_;
  std::map<std::string, SafetensorsFile> files_;
};

/// Describes the problems of a checkpoint, one per line; empty if all bytes are as they were written. Reads everything
/// and calls `on_read` with the number of bytes after each few MiB.
std::vector<std::string> problems_of(
    const std::string& checkpoint, const std::function<void(uint64_t)>& on_read = [](uint64_t) {});

}  // namespace fsdp::state
