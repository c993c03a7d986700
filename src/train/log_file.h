#pragma once
/// \file
/// A log file that grows during training.

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdp::train {

/// Each appended piece is passed to the operating system before `append` returns. One thread at a time.
class LogFile {
 public:
  enum class Begin : uint8_t {
    kAnew,    ///< truncates the file
    kBehind,  ///< appends to the file
    kNew,     ///< creates the file, which must not exist
  };

  /// Makes a closed LogFile.
  LogFile() = default;
  /// Opens the file. With kNew, is_open() is false afterwards if the file existed. Throws Error if it cannot be opened.
  LogFile(std::string path, Begin begin);

  bool is_open() const { return file_.is_open(); }
  /// Throws Error if writing fails, for example because the disk is full. The file then ends with the previous piece.
  void append(std::string_view bytes);

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  Descriptor file_;
};

}  // namespace fsdp::train
