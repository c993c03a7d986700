#pragma once
/// \file
/// Learning rates over the steps of a training. Pure functions.

#include <cstdint>

namespace fsdp::train {

struct CosineSchedule {
  double highest = 0;
  /// Steps in which the rate rises to `highest`.
  int64_t warmup = 0;
  /// Steps of the whole training.
  int64_t steps = 0;
  /// What it falls to, as a share of `highest`.
  double floor = 0.1;
};

/// Rises in equal steps during the warm-up, so that its last step has `highest`, then falls along half a cosine
/// (Loshchilov and Hutter 2017, without restarts) towards the floor, where it stays. `step` counts from 0.
double cosine_learning_rate(const CosineSchedule& schedule, int64_t step);

}  // namespace fsdp::train
