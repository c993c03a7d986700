#pragma once
/// \file
/// Times models that have many groups or parameters.

#include <cstdint>

#include "many_units.h"

namespace bench {

/// Times of this rank in microseconds per unit. They are medians over all steps, and over several models if these are
/// small.
struct ScalingTimes {
  /// Time of one call of `fully_shard` for the whole model.
  double shard = 0;
  /// Time of forward and backward, and time of `torch::optim::SGD`'s step.
  double step = 0, optimizer = 0;
};

/// Makes a model of `units` units and trains it. Collective if `sharded` is true.
ScalingTimes time_units(ScalingUnit unit, int64_t units, bool sharded);

}  // namespace bench
