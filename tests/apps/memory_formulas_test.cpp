// Tests of the formulas of docs/memory.md. They give the most bytes of each class that a rank of a small GPT holds.

#include <fsdp/memory_report.h>

#include <algorithm>

#include "models/gpt.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

constexpr models::GPTConfig kConfig{.vocab = 256, .seq = 32, .dim = 64, .layers = 4, .heads = 4};
constexpr int64_t kBatch = 4;
constexpr double kWithin = 0.02;

// These names are those of docs/memory.md.
constexpr int64_t kDim = kConfig.dim, kTokens = kBatch * kConfig.seq;
constexpr int64_t kBlock = 12 * kDim * kDim + 13 * kDim;
constexpr int64_t kRoot = (2 * kConfig.vocab + kConfig.seq + 2) * kDim;
constexpr int64_t kHead = (kConfig.vocab + 2) * kDim;  // elements of the root that backward begins with
constexpr int64_t kAll = kRoot + kConfig.layers * kBlock;
constexpr int64_t kLargest = kDim * std::max(kConfig.vocab, 4 * kDim);  // elements of the largest operand

struct Expected {
  double rows = 0, whole = 0, gradient = 0, optimizer = 0, activation = 0;
  double held_by_forward =
      0;  // of activations when forward has ended: the scores are gone, because the loss has been computed
};

// Bytes per element of rows, of whole values, gradients and activations, and of gradients during reduction.
struct Bytes {
  double row = 4, whole = 4, reduced = 4;
};

Expected expected_of(Strategy strategy, int64_t ranks, const Bytes& bytes) {
  const double share = strategy == Strategy::kReplicate ? 1 : 1.0 / static_cast<double>(ranks);
  Expected expected;
  expected.rows = bytes.row * share * kAll;
  expected.optimizer = 2 * expected.rows;
  if (strategy == Strategy::kFullShard) expected.whole = bytes.whole * (kRoot + 2 * kBlock);
  if (strategy == Strategy::kShardGradOp || strategy == Strategy::kShardOptimizer) expected.whole = bytes.whole * kAll;
  if (strategy == Strategy::kReplicate) {
    expected.gradient = 2 * bytes.row * kAll;
  } else {
    // While two blocks are being reduced, the last block computes or the root's last gradient arrives.
    const double summed = 2 * bytes.reduced * kBlock, rows_of_block = bytes.row * share * kBlock;
    expected.gradient = summed + std::max(bytes.whole * (kHead + kBlock) + (kConfig.layers - 1) * rows_of_block,
                                          bytes.whole * kRoot + kConfig.layers * rows_of_block);
  }
  const double of_block = 16.0 * kTokens * kDim + kTokens * (4 + kConfig.heads);
  expected.activation = bytes.whole * (kConfig.layers * of_block + 2.0 * kTokens * (kDim + 1 + kConfig.vocab));
  expected.held_by_forward = expected.activation - bytes.whole * kTokens * kConfig.vocab;
  return expected;
}

struct Measured {
  ByteCounts counts;
  int64_t held_by_forward = 0;  // bytes when forward has ended
};

Measured measured(const FullyShardOptions& options, int world) {
  Measured found;
  run_thread_ranks(world,
                   [&](int rank) {
                     const auto net = build_alike([] { return std::make_shared<models::GPTImpl>(kConfig); });
                     for (auto& block : *net->blocks) fully_shard(*block, options);
                     const auto group = fully_shard(static_cast<torch::nn::Module&>(*net), options);
                     optim::AdamW optimizer(net->parameters());
                     for (int step = 0; step < 2; ++step) {
                       const auto tokens = labels({step, rank * kBatch, kBatch}, {kConfig.seq + 1}, kConfig.vocab);
                       const auto ids = tokens.narrow(1, 0, kConfig.seq).clone(),
                                  next = tokens.narrow(1, 1, kConfig.seq).clone();
                       optimizer.zero_grad();
                       group.reset_peak_stats();
                       {
                         const RecordActivations recording(group);
                         torch::Tensor loss;
                         {
                           ForwardScope scope(group);
                           loss = models::next_token_loss(net->forward(ids), next);
                         }
                         if (rank == 0) found.held_by_forward = memory_report(group).all.activation.current;
                         loss.backward();
                       }
                       optimizer.step();
                     }
                     const auto report = memory_report(group, optimizer);
                     if (rank == 0) found.counts = report.all;
                   },
                   {.backend = "gloo"});
  return found;
}

// `scratch` is the number of bytes that LibTorch's matrix products may allocate while they run.
void expect_as_computed(const Expected& expected, const Measured& found, double scratch = 0) {
  const auto expect = [](const char* name, double bytes, int64_t count) {
    EXPECT_NEAR(static_cast<double>(count), bytes, kWithin * bytes) << name;
  };
  const auto& counts = found.counts;
  expect("rows", expected.rows, counts.rows.peak);
  expect("whole", expected.whole, counts.whole.peak);
  expect("gradient", expected.gradient, counts.gradient.peak);
  expect("optimizer", expected.optimizer, counts.optimizer.peak);
  expect("held by forward", expected.held_by_forward, found.held_by_forward);
  const auto peak = static_cast<double>(counts.activation.peak);
  EXPECT_GE(peak, (1 - kWithin) * expected.activation);
  EXPECT_LE(peak, (1 + kWithin) * expected.activation + scratch);
}

TEST(MemoryFormulas, GiveWhatEachStrategyHolds) {
  for (const auto& [strategy, world] : {std::pair{Strategy::kFullShard, 2},
                                        {Strategy::kFullShard, 4},
                                        {Strategy::kShardGradOp, 2},
                                        {Strategy::kShardOptimizer, 4},
                                        {Strategy::kReplicate, 2}}) {
    SCOPED_TRACE(c10::str(strategy, " on ", world, " ranks"));
    expect_as_computed(expected_of(strategy, world, {}), measured({.strategy = strategy}, world));
  }
}

// If the processor cannot multiply bf16, LibTorch's matrix products convert an operand to fp32.
TEST(MemoryFormulas, GiveWhatMixedPrecisionHolds) {
  const MixedPrecisionPolicy policy{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat};
  expect_as_computed(expected_of(Strategy::kFullShard, 2, {.whole = 2}), measured({.mp_policy = policy}, 2),
                     4.0 * kLargest);
}

}  // namespace
}  // namespace fsdp::test
