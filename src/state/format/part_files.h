#pragma once
/// \file
/// Synchronisation of the threads that write a checkpoint, through files only. Each writer keeps a file locked while it
/// writes, and writes a text file when it is done. The kernel releases the lock of a process that ends, so no other
/// writer waits for such a process.

#include <stop_token>
#include <string>
#include <string_view>

#include "state/format/file_lock.h"

namespace fsdp::state {

/// A writer that has not finished. It holds a file lock; no two writers of a folder have the same number.
class PartWriter {
 public:
  /// Takes the lock. Throws FormatError if the folder cannot be written to or does not support locks.
  PartWriter(const std::string& folder, int number);
  /// Writes the text file for await_part. The text is on disk when this function returns. Throws FileError.
  void leave(std::string_view text) const;

 private:
  std::string folder_;
  int number_;
  FileLock lock_;
};

/// Waits until the writer `number` has written its text, and returns the text. Throws FormatError if the writer ended
/// without writing its text, or if `stop` is requested.
std::string await_part(const std::string& folder, int number, const std::stop_token& stop);
/// Removes the lock files and text files of writers 0 to `count` - 1.
void remove_parts(const std::string& folder, int count);

}  // namespace fsdp::state
