#pragma once
/// \file
/// A log file that grows during training.

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdp::train {

/// A file to which text is appended in pieces. When `append` returns, the operating system has the piece. Not
/// thread-safe.
class LogFile {
 public:
  enum class Begin : uint8_t {
    kAnew,    ///< The constructor truncates the file, or creates it.
    kBehind,  ///< The constructor keeps the file's contents, or creates the file.
    kNew,     ///< The constructor creates the file, which must not exist.
  };

  /// Makes a closed LogFile.
  LogFile() = default;
  /// Opens the file. Throws Error if that fails. If a file exists and `begin` is kNew, the constructor does not throw,
  /// and is_open() is false afterwards.
  LogFile(std::string path, Begin begin);

  bool is_open() const { return file_.is_open(); }
  /// Writes a piece. Throws Error if that fails, for example because the disk is full. The file then ends with the
  /// previous piece.
  void append(std::string_view bytes);

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  Descriptor file_;
};

}  // namespace fsdp::train
