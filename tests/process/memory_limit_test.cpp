// What fits into a limit on each rank's memory fully sharded, and does not as data parallelism.

#include <fsdp/optim.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <fstream>
#include <iostream>

#include "support/oracle.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

// Parameters P of 1 MiB for each layer; with a batch of 768 rows each layer keeps 3 MiB for backward, A of all. When a
// forward ends, a rank with all rows holds these, AdamW's state and what is kept, 3 P + A; one of two half of the
// first.
constexpr int64_t kWidth = 512, kBatch = 768, kDepth = 24;
constexpr int64_t kParameters = kDepth * kWidth * kWidth * 4, kKept = kDepth * 2 * kBatch * kWidth * 4;
constexpr int64_t kAllowed = 5 * kParameters / 2 + kKept;

rlim_t bytes_of_data() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmData:")) return std::stoull(line.substr(7)) * 1024;
  throw std::runtime_error("no VmData");
}

double train_layers(int64_t depth, Strategy strategy) {
  torch::manual_seed(3);
  torch::nn::Sequential net;
  for (int64_t i = 0; i < depth; ++i) {
    torch::nn::Linear layer(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
    fully_shard(*layer, {.strategy = strategy});
    net->push_back(layer);
  }
  const auto group = fully_shard(*net, {.strategy = strategy});
  optim::AdamW optimizer(group.parameters(), torch::optim::AdamWOptions(1e-3));
  double last = 0;
  for (int step = 0; step < 2; ++step) {
    torch::Tensor loss;
    {
      ForwardScope scope(group);
      auto x = torch::full({kBatch, kWidth}, 0.1F * static_cast<float>(1 + rank() + step));
      for (auto& layer : *net) x = x + torch::tanh(layer.ptr()->as<torch::nn::Linear>()->forward(x));
      loss = x.square().mean();
    }
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item<double>();
  }
  return last;
}

PROCESS_CASE(train_layers_within_a_limit) {
  torch::set_num_threads(1);
  init_process_group({.backend = "gloo", .timeout = std::chrono::seconds(60)});
  const auto strategy =
      std::string(std::getenv("CASE_STRATEGY")) == "ddp" ? Strategy::kReplicate : Strategy::kFullShard;
  train_layers(2, strategy);  // threads, buffers of kernels and what transports keep are there
  const rlimit limit{bytes_of_data() + kAllowed, RLIM_INFINITY};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw std::runtime_error("setrlimit");
  const double loss = train_layers(kDepth, strategy);
  std::cout << "loss " << loss << std::endl;
}

TEST(MemoryLimit, OfARankIsKeptFullyShardedAndNotByDataParallelism) {
  const auto run = [](const char* strategy, int world) {
    // Large blocks are mappings of their own: their memory goes with them, and leaves no holes in the heap.
    ProcessRanks ranks(
        "train_layers_within_a_limit",
        {.world_size = world, .environment = {{"CASE_STRATEGY", strategy}, {"MALLOC_MMAP_THRESHOLD_", "262144"}}});
    std::vector<RankResult> results;
    for (int r = 0; r < world; ++r) results.push_back(ranks.wait(r));
    return results;
  };
  for (const int world : {2, 4})
    for (const auto& rank : run("fsdp", world)) {
      EXPECT_EQ(rank.exit_code, 0) << world << " ranks: " << rank.output;
      EXPECT_THAT(rank.output, ::testing::HasSubstr("loss "));
    }
  for (const auto& rank : run("ddp", 2)) {
    EXPECT_NE(rank.exit_code, 0) << "the limit is no limit";
    EXPECT_THAT(rank.output, ::testing::Not(::testing::HasSubstr("loss ")));
  }
}

}  // namespace
}  // namespace fsdp::test
