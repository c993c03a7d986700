#pragma once
/// \file
/// Over what the ranks of the tests communicate.

#include <cstdlib>
#include <string>

namespace fsdp::test {

/// The backend of FSDP_TEST_BACKEND, under which ctest runs the same tests again; "gloo" without it.
inline std::string test_backend() {
  const char* backend = std::getenv("FSDP_TEST_BACKEND");
  return backend == nullptr ? "gloo" : backend;
}

}  // namespace fsdp::test
