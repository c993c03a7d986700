#pragma once
/// \file
/// What errors say.

#include <fsdp/error.h>

#include <string>

namespace fsdp::test {

/// What the exception of type `E` says that `act` throws; "no error" if it throws none. Exceptions of other types pass.
template <class E = UsageError, class Act>
std::string error_of(const Act& act) {
  try {
    act();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace fsdp::test
