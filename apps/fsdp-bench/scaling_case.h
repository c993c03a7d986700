#pragma once
/// \file
/// Models that have as many of one thing as wanted, and how long they take.

#include <cstdint>
#include <string>

namespace bench {

/// What a model of `fsdp-bench scaling` has many of: groups side by side, groups inside one another, or parameters of
/// one group. Each unit is a vector that forward multiplies by.
enum class ScalingUnit : uint8_t { kGroup, kNestedGroup, kParameter };

/// Of this rank, in microseconds per unit; medians over several models where these are small.
struct ScalingTimes {
  /// `fully_shard` of the whole model by one call.
  double shard = 0;
  /// Forward and backward, and `torch::optim::SGD`'s step.
  double step = 0, optimizer = 0;
};

/// Makes a model of `units` and trains it. Collective if it is sharded.
ScalingTimes time_units(ScalingUnit unit, int64_t units, bool sharded);

}  // namespace bench
