// What the ranks of one host hold together, as the system counts it. Ranks pass for those of two hosts.

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

constexpr int64_t kWidth = 2048, kBytes = kWidth * kWidth * 4;

// Bytes of this process; of pages that several have, its part.
int64_t proportional_set_size() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (int64_t kib = 0; word == "Pss:" && file >> kib) return kib * 1024;
  return -1;
}

PROCESS_CASE(hold_whole_parameters) {
  setenv("FSDP_HOST", std::atoi(std::getenv("RANK")) < 2 ? "one" : "other", /*overwrite=*/1);
  init_process_group({.backend = "hierarchical"});
  torch::nn::Linear net(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
  const auto group = fully_shard(*net);
  const auto input = torch::ones({1, kWidth});
  const torch::NoGradGuard no_grad;
  const auto forward = [&] { net->forward(input).sum().item<float>(); };
  const auto held = [&] {
    barrier();
    const int64_t bytes = proportional_set_size();
    barrier();
    return bytes;
  };
  for (int round = 0; round < 2; ++round) {
    const int64_t before = held();
    int64_t whole = 0;
    {
      const ForwardScope scope(group);
      forward();
      whole = held();
    }
    if (round == 1) std::cout << "whole " << whole - before << " after " << held() - before << std::endl;
  }
}

TEST(RanksOfAHost, HoldWholeParametersOnce) {
  ProcessRanks ranks("hold_whole_parameters", {.world_size = 4});
  std::vector<int64_t> whole, after;
  for (int rank = 0; rank < 4; ++rank) {
    const auto& result = ranks.wait(rank);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    std::istringstream words(result.output.substr(result.output.find("whole ")));
    std::string word;
    words >> word >> whole.emplace_back() >> word >> after.emplace_back();
  }
  for (const size_t first : {size_t{0}, size_t{2}}) {
    const int64_t both = whole[first] + whole[first + 1];
    EXPECT_GT(both, kBytes * 8 / 10);
    EXPECT_LT(both, kBytes * 12 / 10) << "each rank has a copy of its own";
    EXPECT_LT(after[first] + after[first + 1], kBytes * 2 / 10) << "it stays";
  }
}

}  // namespace
}  // namespace fsdp::test
