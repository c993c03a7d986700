#pragma once
/// \file
/// The message of an error of any type.

#include <exception>
#include <string>

namespace fsdp::test {

/// The message of what `act` throws; empty if it throws nothing.
inline std::string text_of_error(const auto& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace fsdp::test
