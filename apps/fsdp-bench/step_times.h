#pragma once
/// \file
/// What the time of a training step is made of, and the least that it can be.

namespace bench {

/// In milliseconds. Forward begins with `zero_grad`.
struct StepTimes {
  double forward = 0, backward = 0, optimizer = 0;
  double total() const { return forward + backward + optimizer; }
};

/// The least that a step sharded over `world` ranks can take: forward and backward as if alone, and the optimizer on
/// this rank's share of the parameters. `alone`: a step of engine "none".
constexpr double bound(const StepTimes& alone, int world) {
  return alone.forward + alone.backward + alone.optimizer / world;
}

}  // namespace bench
