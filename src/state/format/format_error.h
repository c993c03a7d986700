#pragma once
/// \file
/// What is wrong with a file or a folder of a checkpoint. This room knows no LibTorch, and no ranks: who calls it does.

#include <stdexcept>

namespace fsdp::state {

/// Says which file and entry, what was expected, what was found and what to do.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fsdp::state
