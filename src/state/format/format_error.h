#pragma once
/// \file
/// The error for malformed checkpoint files and folders. The sources in state/format depend neither on LibTorch
/// nor on ranks.

#include "comm/posix/file.h"

namespace fsdp::state {

/// Thrown for a malformed file or folder. The message names the file and the entry, and says what was expected, what
/// was found and what to do. Functions that read or write files also throw FileError if the system cannot read or
/// write.
class FormatError : public FileError {
 public:
  using FileError::FileError;
};

}  // namespace fsdp::state
