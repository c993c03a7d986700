#pragma once
/// \file
/// Data sets in ../shared/data, beside the repository.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace fsdp::test {

/// Returns true in the nightly run, which also reads the largest files.
inline bool reads_large_files() { return std::getenv("FSDP_TEST_MAX_WORLD") != nullptr; }

inline std::string shared_data(const std::string& name) { return std::string(FSDP_TEST_DATA) + "/" + name; }

}  // namespace fsdp::test

/// Skips the test, with a message, if the file or folder is missing.
#define FSDP_NEEDS_SHARED_DATA(name)                                  \
  if (!std::filesystem::exists(::fsdp::test::shared_data(name))) {    \
    GTEST_SKIP() << ::fsdp::test::shared_data(name) << " is missing"; \
  }                                                                   \
  static_assert(true)
