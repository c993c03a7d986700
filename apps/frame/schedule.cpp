#include "frame/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace frame {

double cosine_learning_rate(const CosineSchedule& schedule, int64_t step) {
  if (step < schedule.warmup)
    return schedule.highest * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  const auto steps_of_fall = static_cast<double>(std::max<int64_t>(schedule.steps - schedule.warmup, 1));
  const double progress = std::min(static_cast<double>(step - schedule.warmup) / steps_of_fall, 1.0);
  const double share = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return schedule.highest * (schedule.floor + (1 - schedule.floor) * share);
}

}  // namespace frame
