#pragma once
/// \file
/// The message of an error of any type.

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
