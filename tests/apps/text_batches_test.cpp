// Tests which tokens of a text a rank sees. Joined batches do not depend on the rank that sees each part, and each pass
// sees every sequence once.

#include "text/text_batches.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <set>
#include <stdexcept>

namespace text {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kSeq = 3, kTokens = 100;  // 33 sequences

TextBatches batches_of(TextBatchesOptions options) {
  options.seq = kSeq;
  options.seed = 5;
  return {torch::arange(kTokens), torch::arange(kTokens), options};
}

/// Returns what all ranks together see in a step, in the order in which it is distributed.
torch::Tensor joined(TextBatchesOptions options, int64_t step) {
  std::vector<torch::Tensor> parts;
  for (int64_t micro_batch = 0; micro_batch < options.micro_batches; ++micro_batch) {
    for (options.rank = 0; options.rank < options.world_size; ++options.rank)
      parts.push_back(batches_of(options).training(step, micro_batch).inputs);
  }
  return torch::cat(parts);
}

TEST(TextBatches, RanksAndMicroBatchesSeeWhatOneRankSeesInOneBatchAndTargetsAreTheTokensThatFollow) {
  for (const int64_t epochs : {0, 2}) {
    for (const int64_t step : {0, 1, 3}) {
      const auto whole = joined({.sequences = 12, .epochs = epochs, .steps = 9}, step);
      const TextBatchesOptions dealt{.sequences = 2, .micro_batches = 2, .epochs = epochs, .steps = 9, .world_size = 3};
      EXPECT_TRUE(torch::equal(joined(dealt, step), whole)) << epochs << " epochs, step " << step;
      EXPECT_EQ(batches_of(dealt).tokens_per_step(), 36);
      const auto batch = batches_of(dealt).training(step, 0);
      EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{2, kSeq}));
      EXPECT_TRUE(torch::equal(batch.targets, batch.inputs + 1));
    }
  }
}

TEST(TextBatches, AnEpochSeesEachSequenceOnceInAnOrderOfItsOwnAndEndsAfterItsLastStep) {
  const auto batches = batches_of({.sequences = 8, .epochs = 2});
  ASSERT_EQ(batches.steps(), 8);  // four in each epoch; one sequence is left out
  std::vector<std::vector<int64_t>> orders;
  for (const int64_t first_step : {0, 4}) {
    std::vector<int64_t> order;
    for (int64_t step = first_step; step < first_step + 4; ++step) {
      const auto starts = batches.training(step, 0).inputs.select(1, 0).contiguous();
      order.insert(order.end(), starts.const_data_ptr<int64_t>(), starts.const_data_ptr<int64_t>() + starts.numel());
    }
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 32U);
    for (const int64_t start : order) EXPECT_EQ(start % kSeq, 0);
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
  const std::pair<int64_t, int64_t> ends[] = {{3, 0}, {4, 1}, {8, 2}};
  for (const auto& [step, ended] : ends) EXPECT_EQ(batches.ended_epoch(step), ended);
  EXPECT_EQ(batches_of({.steps = 4}).ended_epoch(4), 0);
}

TEST(TextBatches, ValidationGivesEachRankAsManySequences) {
  std::set<int64_t> seen;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto parts = batches_of({.sequences = 6, .steps = 1, .rank = rank, .world_size = 2}).validation();
    ASSERT_EQ(parts.size(), 3U);
    EXPECT_EQ(parts.back().inputs.size(0), 4);  // 6 + 6 + 4
    for (const auto& part : parts) {
      EXPECT_TRUE(torch::equal(part.targets, part.inputs + 1));
      for (int64_t i = 0; i < part.inputs.size(0); ++i) seen.insert(part.inputs[i][0].item<int64_t>());
    }
  }
  EXPECT_EQ(seen.size(), 32U);
}

TEST(TextBatches, ATextThatIsTooShortIsAnErrorAndOneThatJustSufficesIsNot) {
  const auto make = [](int64_t training, int64_t validation, TextBatchesOptions options) {
    options.seq = kSeq;
    return TextBatches(torch::arange(training), torch::arange(validation), options);
  };
  const auto too_short = [](const char* what) { return ThrowsMessage<std::invalid_argument>(HasSubstr(what)); };
  const TextBatchesOptions steps{.sequences = 2, .steps = 1, .world_size = 2};
  const TextBatchesOptions epochs{.sequences = 2, .micro_batches = 2, .epochs = 1, .world_size = 2};
  EXPECT_THAT([&] { make(3, 7, steps); }, too_short("training part of the text has 3 tokens, expected at least 4"));
  EXPECT_THAT([&] { make(4, 6, steps); }, too_short("validation part of the text has 6 tokens, expected at least 7"));
  EXPECT_THAT([&] { make(24, 7, epochs); }, too_short("training part of the text has 24 tokens, expected at least 25"));
  EXPECT_EQ(make(4, 7, steps).training(0, 0).inputs.size(0), 2);
  EXPECT_EQ(make(25, 7, epochs).steps(), 1);
}

}  // namespace
}  // namespace text
