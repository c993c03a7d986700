// Tests of the memory that the ranks of a host hold together, as the system counts it. The ranks pretend to be on two
// hosts.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>

#include "process/ranks.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

constexpr int64_t kWidth = 2048, kBytes = kWidth * kWidth * 4;

// Returns the resident bytes of this process, with its share of the pages that several processes map.
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
  const torch::NoGradGuard no_grad;
  const auto held = [&] {
    barrier();
    const int64_t bytes = proportional_set_size();
    barrier();
    return bytes;
  };
  for (int round = 0; round < 2; ++round) {
    const int64_t before = held();
    const int64_t whole = in_scope(group, [&] {
      net->forward(torch::ones({1, kWidth})).sum().item<float>();
      return held();
    });
    if (round == 0) continue;  // the first round allocates what is allocated only once
    const auto of_ranks = all_gather(torch::tensor({whole - before, held() - before}));
    const int first = rank() / 2 * 2;
    const auto of_host = of_ranks.slice(0, first, first + 2).sum(0);
    const int64_t both = of_host[0].item<int64_t>(), after = of_host[1].item<int64_t>();
    TORCH_CHECK(both > kBytes * 8 / 10 && both < kBytes * 12 / 10, "expected about ", kBytes, " bytes, found ", both);
    TORCH_CHECK(after < kBytes * 2 / 10, "expected nearly no bytes after the scope, found ", after);
  }
}

TEST(RanksOfAHost, HoldWholeParametersOnce) {
  auto ranks = start_ranks("hold_whole_parameters", 4);
  expect_ends(ranks, 4, 0);
}

}  // namespace
}  // namespace fsdp::test
