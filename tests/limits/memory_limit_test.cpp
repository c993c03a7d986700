// Tests of models that fit into a limit on each rank's memory fully sharded or recomputed, but not with data
// parallelism.

#include <fsdp/activation_checkpoint.h>
#include <fsdp/optim.h>

#include <iostream>

#include "support/data_limit.h"
#include "support/oracle.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

// Each layer has 1 MiB of parameters, and keeps 3 MiB for backward with a batch of 768 rows. P and A are the sums over
// layers. When forward ends, a rank with all rows holds parameters, AdamW's state and activations: 3 P + A. One of two
// sharded ranks holds half of the 3 P. With recomputation half of A is kept, and when backward ends the rank holds at
// most 4 P and the activations of one layer.
constexpr int64_t kWidth = 512, kBatch = 768, kDepth = 24;
constexpr int64_t kParameters = kDepth * kWidth * kWidth * 4, kKept = kDepth * 2 * kBatch * kWidth * 4;
constexpr int64_t kAllowed = 5 * kParameters / 2 + kKept;

double train_layers(int64_t depth, Strategy strategy, bool checkpoints) {
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
      for (auto& layer : *net) {
        const auto part = [&layer](const torch::Tensor& h) {
          return torch::tanh(layer.ptr()->as<torch::nn::Linear>()->forward(h));
        };
        x = x + (checkpoints ? activation_checkpoint(part, x) : part(x));
      }
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
  const std::string trains(std::getenv("CASE_TRAINS"));
  const auto strategy = trains == "ddp" ? Strategy::kReplicate : Strategy::kFullShard;
  const bool checkpoints = trains == "checkpoints";
  train_layers(2, strategy, checkpoints);  // makes threads, buffers of kernels and memory of transports
  limit_data_to_another(kAllowed);
  const double loss = train_layers(kDepth, strategy, checkpoints);
  std::cout << "loss " << loss << std::endl;
}

// The rank that reaches the limit first reports it. Other ranks may only learn that this rank is gone.
void expect_within_limit(const char* as, int world, bool fits) {
  SCOPED_TRACE(c10::str(as, " on ", world, " ranks"));
  // Large blocks get their own mappings, so freeing them returns their memory and leaves no holes in the heap.
  ProcessRanks ranks("train_layers_within_a_limit",
                     {.world_size = world, .environment = {{"CASE_TRAINS", as}, {"MALLOC_MMAP_THRESHOLD_", "262144"}}});
  std::string output;
  for (int r = 0; r < world; ++r) {
    const auto& rank = ranks.wait(r);
    EXPECT_EQ(rank.exit_code == 0, fits) << rank.output;
    EXPECT_EQ(rank.output.find("loss ") != std::string::npos, fits) << rank.output;
    output += rank.output;
  }
  EXPECT_EQ(output.find("allocate memory") == std::string::npos, fits) << output;
}

TEST(MemoryLimit, OfARankIsKeptFullyShardedAndNotByDataParallelism) {
  for (const int world : {2, 4}) expect_within_limit("fsdp", world, true);
  expect_within_limit("ddp", 2, false);
}

TEST(MemoryLimit, OfOneRankIsKeptWithCheckpointsAndNotWithout) {
  expect_within_limit("checkpoints", 1, true);
  expect_within_limit("fsdp", 1, false);
}

}  // namespace
}  // namespace fsdp::test
