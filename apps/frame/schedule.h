#pragma once
/// \file
/// Learning-rate schedules. Pure functions.

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

/// A linear warm-up whose last step has the rate `highest`, then half a cosine (Loshchilov and Hutter 2017, without
/// restarts) down to the floor, which also holds after the last step. `step` counts from 0.
double cosine_learning_rate(const CosineSchedule& schedule, int64_t step);

}  // namespace frame
