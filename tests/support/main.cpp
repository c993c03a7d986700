// The main function of every test executable. It runs one rank's case if the environment names one, and otherwise the
// tests.

#include <gtest/gtest.h>

#include "support/process_ranks.h"
#include "support/separators.h"

int main(int argc, char** argv) {
  fsdp::test::take_locale_of_environment();
  if (const int code = fsdp::test::run_process_case(); code >= 0) return code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
