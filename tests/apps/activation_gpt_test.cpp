// Tests of a GPT whose blocks are recomputed: the bytes that forward keeps, and the bits of the results.

#include <fsdp/activation_checkpoint.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "models/gpt.h"
#include "support/counted_memory.h"

namespace fsdp::test {
namespace {

struct Cost {
  std::vector<torch::Tensor> losses, gradients;
  int64_t kept = 0, peak = 0;
};

// Trains two steps with dropout, and measures the second one, in which the gradients of the first one exist.
Cost train(const models::RunPart& run_block) {
  CountedMemory memory;
  torch::manual_seed(1);
  models::GPT gpt(models::GPTConfig{.vocab = 64, .seq = 32, .dim = 64, .layers = 12, .heads = 4, .dropout = 0.1});
  gpt->run_block = run_block;
  const auto ids = torch::randint(64, {8, 32}, torch::kLong), targets = torch::randint(64, {8, 32}, torch::kLong);
  Cost cost;
  for (int step = 0; step < 2; ++step) {
    const int64_t before = memory.counts->now;
    memory.counts->peak = before;
    const auto loss = gpt->forward(ids, targets);
    cost.kept = memory.counts->now - before;
    loss.backward();
    cost.peak = memory.counts->peak - before;
    cost.losses.push_back(loss.detach());
  }
  for (const auto& parameter : gpt->parameters()) cost.gradients.push_back(parameter.grad());
  return cost;
}

models::RunPart computed_again(const CheckpointOptions& options) {
  return
      [options](const models::Part& part, const torch::Tensor& x) { return activation_checkpoint(options, part, x); };
}

void expect_bits(const Cost& expected, const Cost& found) {
  for (size_t i = 0; i < expected.losses.size(); ++i) EXPECT_TRUE(torch::equal(expected.losses[i], found.losses[i]));
  for (size_t i = 0; i < expected.gradients.size(); ++i)
    EXPECT_TRUE(torch::equal(expected.gradients[i], found.gradients[i])) << i;
}

TEST(ActivationGpt, TwelveBlocksKeepAFifthAndHaveTheSameBits) {
  const auto plain = train({}), again = train(computed_again({})),
             selective = train(computed_again({.keeps_results = is_product}));
  expect_bits(plain, again);
  EXPECT_LE(5 * again.kept, plain.kept);
  EXPECT_LE(5 * again.peak, 2 * plain.peak) << "beside the inputs one block at a time, and the head";
  expect_bits(plain, selective);
  EXPECT_LT(selective.kept, plain.kept);
  EXPECT_GT(selective.kept, again.kept) << "products are kept";
}

}  // namespace
}  // namespace fsdp::test
