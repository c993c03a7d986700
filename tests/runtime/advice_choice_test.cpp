// Which strategy serves a model better.

#include "api/advice_choice.h"

#include <gtest/gtest.h>

#include <sstream>

namespace fsdp::test {
namespace {

// A model of 800 MB on 4 ranks with AdamW.
Measured measured(double waiting_share, int64_t spare_mb) {
  constexpr int64_t kMB = 1'000'000;
  return {.strategy = Strategy::kFullShard,
          .waiting_share = waiting_share,
          .parameter_bytes = 800 * kMB,
          .shards = 4,
          .rows = 200 * kMB,
          .whole = 100 * kMB,
          .gradient = 300 * kMB,
          .optimizer = 400 * kMB,
          .spare_bytes = spare_mb * kMB};
}

std::string text_of(const Advice& advice) {
  std::ostringstream text;
  text << advice;
  return text.str();
}

TEST(Advice, IsToReplicateWhatWaitsAndFits) {
  // 800 of rows, 300 + 600 of gradients, 1600 of state are 2300 more.
  const auto advice = choose_advice(measured(0.2, 2300));
  EXPECT_EQ(advice.better, Strategy::kReplicate);
  EXPECT_EQ(advice.bytes_now, 1'000'000'000);
  EXPECT_EQ(advice.bytes_then, 3'300'000'000);
  EXPECT_EQ(
      text_of(advice),
      "20 % of the time a rank waits for others, and holds at most 1000 MB with kFullShard. kReplicate would move "
      "two thirds of the bytes and hold 3300 MB; 2300 MB are to spare.");
}

TEST(Advice, IsToKeepWholeParametersWhereThereIsNotEnoughToReplicate) {
  const auto advice = choose_advice(measured(0.2, 700));
  EXPECT_EQ(advice.better, Strategy::kShardGradOp);
  EXPECT_EQ(advice.bytes_then, 1'700'000'000);
}

TEST(Advice, IsNothingWhereMemoryOrWaitingIsLess) {
  EXPECT_EQ(choose_advice(measured(0.2, 699)).better, Strategy::kFullShard);
  EXPECT_EQ(choose_advice(measured(0.04, 9000)).better, Strategy::kFullShard);
  auto replicated = measured(0.2, 9000);
  replicated.strategy = Strategy::kReplicate;
  EXPECT_EQ(choose_advice(replicated).better, Strategy::kReplicate);
  EXPECT_EQ(text_of(choose_advice(measured(0.04, 9000))),
            "4 % of the time a rank waits for others, and holds at most 1000 MB with kFullShard. Nothing else would "
            "serve better.");
}

}  // namespace
}  // namespace fsdp::test
