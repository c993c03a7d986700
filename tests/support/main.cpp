// The main function of every test executable: one rank's case, or the tests.

#include <gtest/gtest.h>

#include "support/process_ranks.h"

int main(int argc, char** argv) {
  if (const int code = fsdp::test::run_process_case(); code >= 0) return code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
