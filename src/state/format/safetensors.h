#pragma once
/// \file
/// Reads and writes safetensors files, whole tensors or parts of them.

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
  /// Opens the file and reads its header. Throws FileError if this fails, and FormatError if the header is invalid.
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.bytes(); }
  /// Checksum of all bytes before the data.
  uint64_t header_checksum() const { return header_checksum_; }
  const Header& header() const { return header_; }
  /// Returns the entry of this name. Throws FormatError if there is none.
  const Entry& entry(const std::string& name) const;
  bool has(const std::string& name) const { return index_.contains(name); }

  /// Reads the entry's bytes from the byte `offset` on, and fills `out` with them.
  void read(const Entry& entry, uint64_t offset, std::span<std::byte> out) const;
  /// Like `read`, but reads whole chunks and throws FormatError unless these have the given checksums. `checksums` has
  /// one checksum for each chunk of the entry.
  void read_checked(const Entry& entry, std::span<const uint64_t> checksums, uint64_t offset,
                    std::span<std::byte> out) const;

 private:
  InputFile file_;
  Header header_;
  uint64_t header_checksum_ = 0, data_begin_ = 0;
  std::unordered_map<std::string, size_t> index_;
};

/// What the manifest records about a file that was written.
struct WrittenFile {
  uint64_t bytes = 0, header_checksum = 0;
  /// The checksums of each entry's chunks (see ChunkChecksums), by the entry's name.
  std::map<std::string, std::vector<uint64_t>> checksums;
};

/// Writes a file sequentially. The file gets its final name in `finish`.
class SafetensorsWriter {
 public:
  /// Creates the file and writes its header. Ignores `begin` and `end` of the entries and assigns new offsets. Throws
  /// FormatError as lay_out does, or if the header is too long.
  SafetensorsWriter(const std::string& path, std::vector<Entry> entries, std::map<std::string, std::string> metadata);
  /// The entries in the order in which `write` expects their bytes.
  const std::vector<Entry>& entries() const { return header_.entries; }
  /// Writes the next bytes of the data. They may be a part of an entry, or span several entries.
  void write(std::span<const std::byte> bytes);
  /// Gives the file its final name and returns what the manifest records. Throws FormatError if bytes are missing.
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
