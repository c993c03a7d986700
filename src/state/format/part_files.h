#pragma once
/// \file
/// Writers that tell each other by files alone that they are done: each has a file that it holds locked while it
/// writes, and leaves a text when it has written. The system takes the lock back from a process that ends, so nobody
/// waits for one that is gone.

#include <stop_token>
#include <string>
#include <string_view>

#include "state/format/file_lock.h"

namespace fsdp::state {

/// A writer that has not finished. One in a folder for each number.
class PartWriter {
 public:
  /// Throws FormatError if the folder cannot be written to.
  PartWriter(const std::string& folder, int number);
  /// Writes the text for the other writers to read; when it returns, the disk has it. Throws FileError. A writer that
  /// has gone leaves no more texts.
  void leave(std::string_view text) const;

 private:
  std::string folder_;
  int number_;
  FileLock lock_;
};

/// Waits until a writer has left its text and returns that. Throws FormatError if the writer ended without one, or if
/// `stop` is requested meanwhile.
std::string await_part(const std::string& folder, int number, const std::stop_token& stop);
/// Removes what writers 0 to `count` - 1 left.
void remove_parts(const std::string& folder, int count);

}  // namespace fsdp::state
