// Tests of a rank that reads rows and ends, or stops, while its peers wait to write them.

#include <gmock/gmock.h>

#include <iostream>
#include <string_view>
#include <thread>

#include "comm/core/fault_point.h"
#include "process/ranks.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

// Rank 0 keeps its graph, so the other ranks wait before they write until rank 0 is gone. Then they open a scope, for
// which they need rank 0.
PROCESS_CASE(write_rows_that_rank_0_reads) {
  init_process_group({.backend = "shm", .timeout = std::chrono::seconds(3)});
  torch::manual_seed(7);
  auto net = std::make_shared<SmallNetImpl>(6, 2);
  net->to(torch::kDouble);
  const auto group = fully_shard(*net);
  torch::Tensor loss;
  {
    ForwardScope scope(group);
    loss = small_net_loss(*net, {0, 0, 2});
  }
  while (rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  loss.reset();
  on_fault_point = [](const char* place) {
    if (std::string_view(place) == "rows gate") std::cout << "at the gate" << std::endl;
  };
  try {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.add_(1);
    ForwardScope scope(group);
  } catch (const PeerLost& error) {
    std::cout << "PeerLost " << error.rank() << ": " << error.what_without_backtrace() << std::endl;
    throw;
  }
}

class ARankThatReads : public testing::TestWithParam<int> {};

TEST_P(ARankThatReads, IsNamedByThoseThatWaitToWriteWhenASignalEndsOrStopsIt) {
  auto ranks = start_ranks("write_rows_that_rank_0_reads", 3);
  wait_for_output(ranks, {1, 2}, "at the gate");
  ranks.kill(0, GetParam());
  for (int r : {1, 2}) expect_end(ranks, r, 1, {"PeerLost 0:"});
}

INSTANTIATE_TEST_SUITE_P(Signals, ARankThatReads, testing::Values(SIGKILL, SIGSTOP));

}  // namespace
}  // namespace fsdp::test
