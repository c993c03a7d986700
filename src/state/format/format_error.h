#pragma once
/// \file
/// What is wrong with a file or a folder of a checkpoint. This room knows no LibTorch, and no ranks: who calls it does.

#include "comm/posix/file.h"

namespace fsdp::state {

/// Says which file and entry, what was expected, what was found and what to do. Who reads or writes files throws a
/// FileError too, where a file itself cannot be read or written.
class FormatError : public FileError {
 public:
  using FileError::FileError;
};

}  // namespace fsdp::state
