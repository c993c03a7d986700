#pragma once
/// \file
/// Times models that have many groups or parameters.

#include <cstdint>

#include "many_units.h"

namespace bench {

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
