#pragma once
/// \file
/// Reading and writing safetensors files, whole tensors or parts of them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/posix/file.h"
#include "state/format/checksum.h"
#include "state/format/header.h"

namespace fsdp::state {

/// A safetensors file with a valid header. Thread-safe.
class SafetensorsFile {
 public:
  /// Throws FormatError if the file or its header is invalid.
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.bytes(); }
  /// Checksum of everything before the data.
  uint64_t header_checksum() const { return header_checksum_; }
  const Header& header() const { return header_; }
  /// Throws FormatError if there is no such entry.
  const Entry& entry(const std::string& name) const;
  bool has(const std::string& name) const { return index_.contains(name); }

  /// Reads the entry's bytes from `offset` on into `out`.
  void read(const Entry& entry, uint64_t offset, std::span<std::byte> out) const;
  /// Like `read`, and throws FormatError unless the chunks that it touches have these checksums.
  void read_checked(const Entry& entry, std::span<const uint64_t> checksums, uint64_t offset,
                    std::span<std::byte> out) const;

 private:
  InputFile file_;
  Header header_;
  uint64_t header_checksum_ = 0, data_begin_ = 0;
  std::unordered_map<std::string, size_t> index_;
};

/// The manifest's record of a file.
struct WrittenFile {
  uint64_t bytes = 0, header_checksum = 0;
  /// Checksums by entry name, see ChunkChecksums.
  std::map<std::string, std::vector<uint64_t>> checksums;
};

/// Writes a file sequentially. The file gets its final name in `finish`.
class SafetensorsWriter {
 public:
  /// Assigns offsets to the entries, whose `begin` and `end` are ignored. Throws FormatError.
  SafetensorsWriter(const std::string& path, std::vector<Entry> entries, std::map<std::string, std::string> metadata);
  /// The entries in the order in which `write` expects their bytes.
  const std::vector<Entry>& entries() const { return header_.entries; }
  /// Writes the next bytes: a part of an entry, or several entries.
  void write(std::span<const std::byte> bytes);
  /// Throws FormatError if bytes are missing.
  WrittenFile finish();

 private:
  void close_full_entries();
  OutputFile file_;
  Header header_;
  WrittenFile written_;
  ChunkChecksums checksums_;
  size_t entry_ = 0;
  uint64_t data_bytes_ = 0;
};

}  // namespace fsdp::state
