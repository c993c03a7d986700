#pragma once
/// \file
/// What errors of any type say.

#include <exception>
#include <string>

namespace fsdp::test {

/// What `act` throws, as text; empty if nothing.
inline std::string text_of_error(const auto& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace fsdp::test
