#pragma once
/// \file
/// Returns the messages of errors of all types.

#include <exception>
#include <string>

namespace fsdp::test {

/// Returns the message of the exception that `act` throws, or an empty string if `act` throws nothing.
inline std::string text_of_error(const auto& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace fsdp::test
