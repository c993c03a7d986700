#pragma once
/// \file
/// How far the work on a large checkpoint has come.

#include <cstdint>

namespace ckpt {

/// Prints a line to standard error at each tenth of the bytes; of less than 256 MiB nothing.
class Progress {
 public:
  explicit Progress(uint64_t total_bytes) : total_(total_bytes) {}
  void add(uint64_t bytes);

 private:
  uint64_t total_, done_ = 0, printed_tenths_ = 0;
};

}  // namespace ckpt
