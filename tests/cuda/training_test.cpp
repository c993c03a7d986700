// Compares sharded training on CUDA devices with the unsharded model. The tests are skipped, with the reason, if there
// is no device.

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cuda/devices.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

constexpr int64_t kSamplesPerRank = 2;
constexpr int kSteps = 4;

torch::nn::Sequential make_net() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(5, 17), torch::nn::Tanh(), torch::nn::Linear(17, 3));
  net->to(torch::kCUDA, torch::kDouble);
  return net;
}

// Returns the samples of all ranks in one step. They are made on the CPU, so that every device gets the same ones.
torch::Tensor samples(int step) {
  torch::manual_seed(100 + static_cast<uint64_t>(step));
  return torch::randn({world_size() * kSamplesPerRank, 5}, torch::kDouble).to(torch::kCUDA);
}

template <class Net>
void train(Net& net, const std::vector<torch::Tensor>& parameters,
           const std::function<torch::Tensor(const torch::Tensor&)>& share) {
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    net(share(samples(step))).pow(2).mean().backward();
    optimizer.step();
  }
}

PROCESS_CASE(train_on_cuda) {
  init_process_group({.backend = "nccl", .timeout = std::chrono::seconds(60)});
  auto oracle = make_net();
  const auto forward = [&](const torch::Tensor& x) { return oracle->forward(x); };
  train(forward, oracle->parameters(), [](const torch::Tensor& batch) { return batch; });

  auto net = make_net();
  fully_shard(*net->ptr(0));
  auto model = fully_shard(net);
  train(model, net->parameters(),
        [](const torch::Tensor& batch) { return batch.narrow(0, rank() * kSamplesPerRank, kSamplesPerRank); });
  const auto expected = oracle->parameters(), found = net->parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK(torch::allclose(full_tensor(found[i]), expected[i], /*rtol=*/1e-10, /*atol=*/1e-12), "parameter ", i);
  }
  destroy_process_group();
}

void expect_training_equals_unsharded(int world_size) {
  ProcessRanks ranks("train_on_cuda", {.world_size = world_size});
  for (int rank = 0; rank < world_size; ++rank) EXPECT_EQ(ranks.wait(rank).exit_code, 0) << ranks.wait(rank).output;
}

TEST(CudaTraining, OneRankEqualsTheUnshardedRun) {
  if (const auto why = why_no_cuda(1); !why.empty()) GTEST_SKIP() << why;
  expect_training_equals_unsharded(1);
}

TEST(CudaTraining, TwoRanksEqualTheUnshardedRun) {
  if (const auto why = why_no_cuda(2); !why.empty()) GTEST_SKIP() << why;
  expect_training_equals_unsharded(2);
}

}  // namespace
}  // namespace fsdp::test
