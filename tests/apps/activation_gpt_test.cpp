// A GPT whose blocks are computed again: what forward keeps, and the bits.

#include <c10/core/Allocator.h>
#include <fsdp/activation_checkpoint.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "models/gpt.h"

namespace fsdp::test {
namespace {

// Bytes that LibTorch's allocator has given out on this thread, on which forward and backward run, and the most.
class CountedMemory {
 public:
  int64_t now() const { return counts_->now; }
  int64_t peak() const { return counts_->peak; }
  void reset_peak() { counts_->peak = counts_->now; }

 private:
  struct Counts final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
  };

  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counts_};
};

struct Cost {
  std::vector<torch::Tensor> losses, gradients;
  int64_t kept = 0, peak = 0;
};

// With dropout, on two steps; gradients of the first one are there in the second.
Cost train(const models::RunPart& run_block) {
  CountedMemory memory;
  torch::manual_seed(1);
  models::GPT gpt(models::GPTConfig{.vocab = 64, .seq = 32, .dim = 64, .layers = 12, .heads = 4, .dropout = 0.1});
  gpt->run_block = run_block;
  const auto ids = torch::randint(64, {8, 32}, torch::kLong), targets = torch::randint(64, {8, 32}, torch::kLong);
  Cost cost;
  for (int step = 0; step < 2; ++step) {
    const int64_t before = memory.now();
    memory.reset_peak();
    const auto loss = gpt->forward(ids, targets);
    cost.kept = memory.now() - before;
    loss.backward();
    cost.peak = memory.peak() - before;
    cost.losses.push_back(loss.detach());
  }
  for (const auto& parameter : gpt->parameters()) cost.gradients.push_back(parameter.grad());
  return cost;
}

models::RunPart computed_again(const CheckpointOptions& options) {
  return [options](const models::Part& part, const torch::Tensor& x) { return activation_checkpoint(options, part, x); };
}

void expect_bits(const Cost& expected, const Cost& found) {
  for (size_t i = 0; i < expected.losses.size(); ++i) EXPECT_TRUE(torch::equal(expected.losses[i], found.losses[i]));
  for (size_t i = 0; i < expected.gradients.size(); ++i)
    EXPECT_TRUE(torch::equal(expected.gradients[i], found.gradients[i])) << i;
}

TEST(ActivationGpt, TwelveBlocksKeepAFifthAndHaveTheSameBits) {
  const auto plain = train({}), again = train(computed_again({}));
  expect_bits(plain, again);
  EXPECT_LE(5 * again.kept, plain.kept);
  EXPECT_LE(5 * again.peak, 2 * plain.peak) << "beside the inputs one block at a time, and the head";
}

TEST(ActivationGpt, TwelveBlocksThatKeepProductsAreInBetween) {
  const auto plain = train({}), all = train(computed_again({})),
             selective = train(computed_again({.keeps_results = is_product}));
  expect_bits(plain, selective);
  EXPECT_LT(selective.kept, plain.kept);
  EXPECT_GT(selective.kept, all.kept);
}

}  // namespace
}  // namespace fsdp::test
