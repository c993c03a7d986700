#pragma once
/// \file
/// Errors of a checkpoint's files and folders. This folder depends neither on LibTorch nor on ranks.

#include "comm/posix/file.h"

namespace fsdp::state {

/// A malformed file or folder. The message has the file and entry, what was expected and found, and what to do.
/// Functions that read or write files also throw FileError if that fails.
class FormatError : public FileError {
 public:
  using FileError::FileError;
};

}  // namespace fsdp::state
