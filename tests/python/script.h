#pragma once
/// \file
/// Runs the scripts of this folder with the virtual environment's Python.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace fsdp::test {

/// Returns true if Python finds all these modules.
inline bool has_python_modules(const std::string& names) {
  const std::string find = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))";
  return std::system((FSDP_TEST_PYTHON " -c '" + find + "' " + names + " >/dev/null 2>&1").c_str()) == 0;
}

/// Runs a script with its arguments, and returns its exit status.
inline int run_script(const std::string& command) {
  return std::system((FSDP_TEST_PYTHON " -B " FSDP_TEST_SOURCES "/python/" + command).c_str());
}

}  // namespace fsdp::test

#define FSDP_NEEDS_PYTHON(names)                                                           \
  if (!::fsdp::test::has_python_modules(names)) {                                          \
    GTEST_SKIP() << "not all in the virtual environment (scripts/setup installs): " names; \
  }                                                                                        \
  static_assert(true)
