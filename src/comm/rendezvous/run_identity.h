#pragma once
/// \file
/// Which run the ranks that meet at an address belong to.

#include <string>

namespace fsdp {

/// The key under which the store has the words of the run that came first.
inline constexpr const char* kRunKey = "fsdp/run";

/// What all ranks of a run must agree about before anything else.
inline std::string run_identity(const std::string& run_id, bool has_token) {
  return "run '" + run_id + (has_token ? "' with" : "' without") + " a token";
}

}  // namespace fsdp
