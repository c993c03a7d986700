#include "train/schedule.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

constexpr CosineSchedule kSchedule{.highest = 0.4, .warmup = 4, .steps = 12, .floor = 0.1};

TEST(CosineSchedule, RisesInEqualStepsToTheHighestRate) {
  for (int64_t step = 0; step < 4; ++step) {
    EXPECT_DOUBLE_EQ(cosine_learning_rate(kSchedule, step), 0.1 * static_cast<double>(step + 1));
  }
}

TEST(CosineSchedule, FallsAlongHalfACosineToTheFloor) {
  EXPECT_DOUBLE_EQ(cosine_learning_rate(kSchedule, 4), 0.4);
  EXPECT_NEAR(cosine_learning_rate(kSchedule, 8), (0.4 + 0.04) / 2, 1e-15);
  EXPECT_NEAR(cosine_learning_rate(kSchedule, 12), 0.04, 1e-15);
  for (int64_t step = 4; step < 12; ++step) {
    EXPECT_GT(cosine_learning_rate(kSchedule, step), cosine_learning_rate(kSchedule, step + 1));
  }
}

TEST(CosineSchedule, StaysAtTheFloorAfterTheLastStep) {
  EXPECT_NEAR(cosine_learning_rate(kSchedule, 1000), 0.04, 1e-15);
}

TEST(CosineSchedule, NeedsNoWarmUpAndMayBeAllWarmUp) {
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 0, .steps = 5}, 0), 1);
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 5, .steps = 5}, 4), 1);
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 5, .steps = 2}, 1), 0.4);
}

}  // namespace
}  // namespace fsdp::train
