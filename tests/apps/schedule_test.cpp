// Tests of the learning rates of training steps, and of the number of operations that a token takes.

#include "frame/schedule.h"

#include <gtest/gtest.h>

#include "frame/step_metrics.h"

namespace frame {
namespace {

TEST(CosineSchedule, RisesInEqualStepsAndFallsAlongHalfACosineToTheFloor) {
  constexpr CosineSchedule kSchedule{.highest = 0.4, .warmup = 4, .steps = 12, .floor = 0.1};
  const double rates[] = {0.1, 0.2, 0.3, 0.4, 0.4};
  for (int64_t step = 0; step < 5; ++step) EXPECT_DOUBLE_EQ(cosine_learning_rate(kSchedule, step), rates[step]);
  for (int64_t step = 4; step < 12; ++step)
    EXPECT_GT(cosine_learning_rate(kSchedule, step), cosine_learning_rate(kSchedule, step + 1));
  EXPECT_NEAR(cosine_learning_rate(kSchedule, 8), (0.4 + 0.04) / 2, 1e-15);
  for (const int64_t step : {12, 1000}) EXPECT_NEAR(cosine_learning_rate(kSchedule, step), 0.04, 1e-15);
  // A schedule without a warm-up, and schedules that are nothing else.
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 0, .steps = 5}, 0), 1);
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 5, .steps = 5}, 4), 1);
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 5, .steps = 2}, 1), 0.4);
}

TEST(StepMetrics, OfATransformersTokenAreThoseOfThePaper) {
  // 6 N + 12 L H Q T for a model of 1000 parameters, 2 layers, 4 heads of 8 dimensions, and 16 tokens of context.
  EXPECT_EQ(FlopsModel::of_transformer_token(1000, 2, 4 * 8, 16), 6 * 1000 + 12 * 2 * 4 * 8 * 16);
}

}  // namespace
}  // namespace frame
