#pragma once
/// \file
/// Synchronisation of writers by files only. Each writer keeps a file locked while it writes, and writes a text file
/// when it is done. The kernel releases the lock of a process that ends, so nobody waits for it.

#include <stop_token>
#include <string>
#include <string_view>

#include "state/format/file_lock.h"

namespace fsdp::state {

/// A writer that has not finished. Numbers are unique in a folder.
class PartWriter {
 public:
  /// Throws FormatError if the folder cannot be written to.
  PartWriter(const std::string& folder, int number);
  /// Writes the text for other writers; it is on disk when this returns. Throws FileError.
  void leave(std::string_view text) const;

 private:
  std::string folder_;
  int number_;
  FileLock lock_;
};

/// Waits until a writer has left its text and returns the text. Throws FormatError if the writer ended without one, or
/// if `stop` is requested.
std::string await_part(const std::string& folder, int number, const std::stop_token& stop);
/// Removes the files of writers 0 to `count` - 1.
void remove_parts(const std::string& folder, int count);

}  // namespace fsdp::state
