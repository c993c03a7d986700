#pragma once
/// \file
/// FSDP_CHECK.

#include <cstdlib>
#include <string_view>

namespace fsdp {

/// Whether ranks compare what they are about to do before each collective: FSDP_CHECK=each, for debugging. They compare
/// it while data moves otherwise.
inline bool checks_each() {
  static const char* const check = std::getenv("FSDP_CHECK");
  return check != nullptr && std::string_view(check) == "each";
}

}  // namespace fsdp
