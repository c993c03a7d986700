#pragma once
/// \file
/// Files that are read at any offset, and files that exist either complete or not at all.

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// The error that a file cannot be read or written. The message says which file, what went wrong and what to do.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Describes an errno of a file operation: "File too large. Raise the limit on the size of files (ulimit -f)".
std::string why_and_what_to_do(int error);

/// Returns the absolute path, which names the same file after the program has changed its working folder. An empty path
/// stays empty.
std::string absolute_path(const std::string& path);

/// A file that is read at any offset. It is not mapped, so a file that shrinks while it is read causes an error and not
/// a signal, and pages that were read do not count as this process's memory. Thread-safe.
class InputFile {
 public:
  /// Opens the file. Throws FileError if it cannot be opened or is not a regular file.
  explicit InputFile(std::string path);
  const std::string& path() const { return path_; }
  /// Returns the file's size when it was opened.
  uint64_t bytes() const { return bytes_; }
  /// Fills `out` with the bytes from `offset` on. Throws FileError if the file has fewer bytes or the disk fails.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  Descriptor file_;
  uint64_t bytes_ = 0;
};

/// Returns the contents of a small file. Throws FileError if the file cannot be read or has more than `most_bytes`.
std::string text_of_file(const std::string& path, uint64_t most_bytes);

/// A file that gets its name only when it is complete and on the disk. Until then it lies in the same folder under a
/// unique name, so several writers of one name do not disturb each other: the last to commit wins.
///
/// If the name is a symbolic link, the link stays and the file that it names is replaced. Only regular files are
/// replaced. Bytes for a device or a FIFO are written to it at once, and opening a FIFO waits for a reader.
class OutputFile {
 public:
  /// Creates the file. Throws FileError if it cannot be created.
  explicit OutputFile(std::string path);
  /// Deletes what was written unless `commit` has succeeded.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  const std::string& path() const { return path_; }
  /// Returns the descriptor, for callers that map the file.
  int number() const { return file_.number(); }
  /// Appends bytes. Throws FileError, e.g. when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Waits until the bytes are on the disk, gives the file its name, which replaces a file that had the name before,
  /// and waits until the name is on the disk. Throws FileError.
  void commit();

 private:
  // `path_` is the path as the caller gave it. `target_`, the place of the complete file, and `temporary_` are empty if
  // the bytes are written to an existing device or FIFO.
  std::string path_, target_, temporary_;
  Descriptor file_;
  uint64_t bytes_ = 0, begun_ = 0;  // bytes written; bytes that the disk was told to write
};

/// Removes temporary files beside `path` whose writers ended before they could commit, for instance because they were
/// killed. Files that are still being written stay. Throws nothing.
void remove_leftovers(const std::string& path) noexcept;

/// Waits until the names of a folder's files are on the disk. Throws FileError.
void sync_folder(const std::string& path);
/// Writes a file with this text. When the function returns, the file and its name are on the disk. Throws FileError.
void write_text(const std::string& path, std::string_view text);

/// Sets the file's size to `bytes`. Reserves the space at once if `now`, otherwise when it is written. Returns 0 or an
/// errno, e.g. EFBIG beyond the limit on the size of files (ulimit -f).
int set_file_size(int file, size_t bytes, bool now);

}  // namespace fsdp
