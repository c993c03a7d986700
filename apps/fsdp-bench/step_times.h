#pragma once
/// \file
/// The parts of a training step's time, and a lower bound for it.

namespace bench {

/// Times in milliseconds. `forward` includes `zero_grad`.
struct StepTimes {
  double forward = 0, backward = 0, optimizer = 0;
  double total() const { return forward + backward + optimizer; }
};

/// Returns the least time that a step sharded over `world` ranks can take: forward and backward of a rank that trains
/// alone, and the optimizer on this rank's share of the parameters. `alone` has the times of a step with engine "none".
constexpr double bound(const StepTimes& alone, int world) {
  return alone.forward + alone.backward + alone.optimizer / world;
}

}  // namespace bench
