#pragma once
/// \file
/// Files that are read in places, and files that are there whole or not at all.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdp::state {

/// A file that is read where one asks. It is not mapped: a file that shrinks while it is read is an error here, not a
/// signal, and pages that were read do not count as this process's memory. Thread safety: all of it.
class InputFile {
 public:
  /// Throws FormatError if it cannot be opened or is no regular file.
  explicit InputFile(std::string path);
  const std::string& path() const { return path_; }
  /// When it was opened.
  uint64_t bytes() const { return bytes_; }
  /// Fills `out` with the bytes from `offset` on. Throws FormatError if they are not there, or the disk fails.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  Descriptor file_;
  uint64_t bytes_ = 0;
};

/// All of a small file. Throws FormatError, also for more than `most_bytes`.
std::string text_of_file(const std::string& path, uint64_t most_bytes);

/// A file that gets its name when it is complete and on the disk: until then it lies beside it as "NAME.tmp".
class OutputFile {
 public:
  /// Throws FormatError if it cannot be made, naming the folder.
  explicit OutputFile(std::string path);
  /// Without `commit` nothing is left of it.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  const std::string& path() const { return path_; }
  /// Throws FormatError, e.g. when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Waits until the disk has it, then gives it its name; what had the name before is replaced. The name itself is
  /// on the disk after `sync_folder`.
  void commit();

 private:
  void begin_writing();

  std::string path_, temporary_;
  Descriptor file_;
  uint64_t bytes_ = 0, begun_ = 0;  // of the file; what of it the disk was told to take
};

/// Waits until the disk has the names in a folder.
void sync_folder(const std::string& path);
/// A file of this text, on the disk with its name.
void write_text(const std::string& path, std::string_view text);

}  // namespace fsdp::state
