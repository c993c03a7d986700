// The rank that hosts the store stays until the others have read why it failed.

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <thread>

#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

// Ranks 0 and 1 disagree about a message. Rank 2 waits for both and learns of it from the store alone, which ends with
// the process of rank 0.
PROCESS_CASE(end_after_a_mismatch_of_two_ranks) {
  init_process_group({.backend = "gloo", .timeout = std::chrono::seconds(30)});
  auto& ranks = default_process_group()->communicator();
  ranks.barrier({"together", {}})->wait();
  try {
    const auto message = at::zeros({3 + rank()});
    if (rank() != 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (rank() == 0) ranks.send(message, 1, {"message", {}})->wait();
    if (rank() == 1) ranks.recv(message, 0, {"message", {}})->wait();
    ranks.barrier({"end", {}})->wait();
  } catch (const Mismatch& error) {
    std::cout << "Mismatch: " << error.what_without_backtrace() << std::endl;
  }
  if (rank() == 0) std::_Exit(EXIT_SUCCESS);
}

TEST(TheHostOfTheStore, StaysUntilOthersHaveReadTheVerdict) {
  ProcessRanks ranks("end_after_a_mismatch_of_two_ranks", {.world_size = 3});
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = ranks.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, testing::AllOf(testing::HasSubstr(c10::str("Mismatch: [fsdp rank ", rank, "/3]")),
                                              testing::HasSubstr("ranks disagree about the next collective"),
                                              testing::Not(testing::HasSubstr("is lost"))));
  }
}

}  // namespace
}  // namespace fsdp::test
