#pragma once
/// \file
/// Elements of a checkpoint's tensors, whichever files they lie in.

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

/// Opens files when elements of them are wanted, and keeps them open. One thread.
class CheckpointReader {
 public:
  /// `path` as find_checkpoint takes it. Throws FormatError.
  explicit CheckpointReader(const std::string& path);
  /// Of a checkpoint whose manifest is known, though it may not be there itself.
  CheckpointReader(std::string path, Manifest manifest) : path_(std::move(path)), manifest_(std::move(manifest)) {}
  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  /// Fills `out` with elements of a tensor of the manifest. Reads these bytes, and at either end of each part the rest
  /// of a chunk; all of it is compared with the checksums. Throws FormatError.
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements, std::span<std::byte> out);

 private:
  const SafetensorsFile& file_of(const TensorPart& part);

  std::string path_;
  Manifest manifest_;
  std::map<std::string, SafetensorsFile> files_;
};

/// What is wrong with a checkpoint, one line for each problem; none if all of its bytes are as they were written. Reads
/// all of it, and calls `on_read` with the number of bytes after each few MiB.
std::vector<std::string> problems_of(
    const std::string& checkpoint, const std::function<void(uint64_t)>& on_read = [](uint64_t) {});

}  // namespace fsdp::state
