#pragma once
/// \file
/// A file that grows while training goes on.

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdp::train {

/// The system has each piece when `append` returns. One thread at a time.
class LogFile {
 public:
  enum class Begin : uint8_t {
    kAnew,    ///< the file is emptied first
    kBehind,  ///< what is appended comes behind what the file has
    kNew,     ///< the file must not be there yet
  };

  /// The file is not open.
  LogFile() = default;
  /// With kNew the file is not open afterwards if it was there already. Throws Error if it cannot be opened.
  LogFile(std::string path, Begin begin);

  bool is_open() const { return file_.is_open(); }
  /// Throws Error, e.g. when the disk is full. The file then ends with the piece before.
  void append(std::string_view bytes);

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  Descriptor file_;
};

}  // namespace fsdp::train
