#pragma once
/// \file
/// Reports progress while a command works on a large checkpoint.

#include <cstdint>

namespace ckpt {

/// Prints a line to standard error after each tenth of the bytes. Prints nothing for less than 256 MiB.
class Progress {
 public:
  explicit Progress(uint64_t total_bytes) : total_(total_bytes) {}
  void add(uint64_t bytes);

 private:
  uint64_t total_, done_ = 0, printed_tenths_ = 0;
};

}  // namespace ckpt
