#pragma once
/// \file
/// Learning-rate schedules. They are pure functions of the step.

#include <cstdint>

namespace frame {

struct CosineSchedule {
  double highest = 0;
  /// Number of steps in which the rate rises to `highest`.
  int64_t warmup = 0;
  /// Number of steps of the whole training.
  int64_t steps = 0;
  /// The final rate as a fraction of `highest`.
  double floor = 0.1;
};

/// Returns the learning rate of a step. `step` counts from 0. The rate rises linearly to `highest` in the last step of
/// the warm-up, and then falls along half a cosine (Loshchilov and Hutter 2017, without restarts) to the floor. It
/// stays at the floor after the last step.
double cosine_learning_rate(const CosineSchedule& schedule, int64_t step);

}  // namespace frame
