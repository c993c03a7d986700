#pragma once
/// \file
/// Functions that check how ranks that are processes have ended.

#include <gmock/gmock.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "comm/core/text.h"
#include "support/process_ranks.h"

namespace fsdp::test {

inline ProcessRanks start_ranks(const std::string& case_name, int world_size,
                                const std::map<std::string, std::string>& environment = {}) {
  return ProcessRanks(case_name, {.world_size = world_size, .environment = environment, .forks = true});
}

/// Expects that the rank ended by itself with this exit code, and that its output contains all of `parts`.
inline void expect_end(ProcessRanks& ranks, int rank, int exit_code, const std::vector<std::string>& parts = {}) {
  const auto& result = ranks.wait(rank);
  EXPECT_FALSE(result.timed_out) << "rank " << rank;
  EXPECT_EQ(result.exit_code, exit_code) << "rank " << rank << ": " << result.output;
  for (const auto& part : parts) EXPECT_THAT(result.output, testing::HasSubstr(part)) << "rank " << rank;
}

/// Expects that all ranks end in this way; see expect_end.
inline void expect_ends(ProcessRanks& ranks, int world_size, int exit_code,
                        const std::vector<std::string>& parts = {}) {
  for (int rank = 0; rank < world_size; ++rank) expect_end(ranks, rank, exit_code, parts);
}

inline void wait_for_output(ProcessRanks& ranks, const std::vector<int>& of_ranks, const std::string& text) {
  for (const int rank : of_ranks) ASSERT_TRUE(ranks.wait_for_output(rank, text)) << ranks.wait(rank).output;
}

}  // namespace fsdp::test
