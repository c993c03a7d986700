#pragma once
/// \file
/// Reading and writing safetensors files, a tensor or a part of one at a time.

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

/// A safetensors file whose header was found to be right. Thread safety: all of it.
class SafetensorsFile {
 public:
  /// Throws FormatError for what is wrong with the file or its header.
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.bytes(); }
  /// Of everything before the data.
  uint64_t header_checksum() const { return header_checksum_; }
  const Header& header() const { return header_; }
  /// Throws FormatError if there is none.
  const Entry& entry(const std::string& name) const;
  bool has(const std::string& name) const { return index_.contains(name); }

  /// Fills `out` with the entry's bytes from `offset` on.
  void read(const Entry& entry, uint64_t offset, std::span<std::byte> out) const;
  /// The same, and the chunks that it touches have these checksums; else FormatError.
  void read_checked(const Entry& entry, std::span<const uint64_t> checksums, uint64_t offset,
                    std::span<std::byte> out) const;

 private:
  InputFile file_;
  Header header_;
  uint64_t header_checksum_ = 0, data_begin_ = 0;
  std::unordered_map<std::string, size_t> index_;
};

/// What a manifest says of a file.
struct WrittenFile {
  uint64_t bytes = 0, header_checksum = 0;
  /// Of each entry, by name: see ChunkChecksums.
  std::map<std::string, std::vector<uint64_t>> checksums;
};

/// Writes a file from its first byte to its last. It has its name after `finish` only.
class SafetensorsWriter {
 public:
  /// Decides where the entries lie; their `begin` and `end` need not be set. Throws FormatError.
  SafetensorsWriter(const std::string& path, std::vector<Entry> entries, std::map<std::string, std::string> metadata);
  /// In the order in which their bytes are expected.
  const std::vector<Entry>& entries() const { return header_.entries; }
  /// The next bytes, some of an entry or those of several.
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
