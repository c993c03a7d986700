#pragma once
/// \file
/// Files that are read in places, and files that are there whole or not at all.

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// A file cannot be read or written. Says which one, what went wrong and what to do.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An errno of a file in words: "File too large. Raise the limit on the size of files (ulimit -f)".
std::string why_and_what_to_do(int error);

/// The path from the root, which means the same file after the program has changed its working folder. An empty path
/// stays empty.
std::string absolute_path(const std::string& path);

/// A file that is read where one asks. It is not mapped: a file that shrinks while it is read is an error here, not a
/// signal, and pages that were read do not count as this process's memory. Thread safety: all of it.
class InputFile {
 public:
  /// Throws FileError if it cannot be opened or is no regular file.
  explicit InputFile(std::string path);
  const std::string& path() const { return path_; }
  /// When it was opened.
  uint64_t bytes() const { return bytes_; }
  /// Fills `out` with the bytes from `offset` on. Throws FileError if they are not there, or the disk fails.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  Descriptor file_;
  uint64_t bytes_ = 0;
};

/// All of a small file. Throws FileError, also for more than `most_bytes`.
std::string text_of_file(const std::string& path, uint64_t most_bytes);

/// A file that gets its name when it is complete and on the disk. Until then it lies in the same folder under a name
/// that nobody else has, so several that write to one name do not meet: the last to commit counts.
///
/// A link stays, and what it names is replaced. Nothing but a regular file is: a device or a FIFO is written to as the
/// bytes come, and opening a FIFO waits for a reader.
class OutputFile {
 public:
  /// Throws FileError if it cannot be made.
  explicit OutputFile(std::string path);
  /// Without `commit` nothing is left of it.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  const std::string& path() const { return path_; }
  /// For those who map it.
  int number() const { return file_.number(); }
  /// Throws FileError, e.g. when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Waits until the disk has it, then gives it its name and waits until the disk has that. What had the name before is
  /// replaced. Throws FileError.
  void commit();

 private:
  void make_temporary();
  void begin_writing();

  // `path_` as it was given. The others are empty where the bytes go straight to what has the name.
  std::string path_, target_, temporary_;
  Descriptor file_;
  uint64_t bytes_ = 0, begun_ = 0;  // of the file; what of it the disk was told to take
};

/// Removes temporary files beside `path` whose writers ended before they could commit, for instance because they were
/// killed. Those that still write are left alone. Throws nothing.
void remove_leftovers(const std::string& path) noexcept;

/// Waits until the disk has the names in a folder. Throws FileError.
void sync_folder(const std::string& path);
/// Writes a file of this text; when it returns, the disk has the file and its name. Throws FileError.
void write_text(const std::string& path, std::string_view text);

/// Makes the file so long, and takes the room for it now if `now`, else as it is written. Returns 0 or an errno, EFBIG
/// beyond the limit on the size of files (ulimit -f).
int set_file_size(int file, size_t bytes, bool now);

}  // namespace fsdp
