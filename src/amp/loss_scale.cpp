#include "amp/loss_scale.h"

#include <cmath>

#include "comm/core/check.h"

namespace fsdp::amp {

GradScalerState checked(GradScalerState state, const std::string& where) {
  require(std::isfinite(static_cast<float>(state.scale)) && static_cast<float>(state.scale) > 0, where,
          "expected a scale above 0 that a float can represent, found ", state.scale);
  require(state.growth_factor > 1, where, "expected growth_factor > 1, found ", state.growth_factor);
  require(state.backoff_factor > 0 && state.backoff_factor < 1, where, "expected 0 < backoff_factor < 1, found ",
          state.backoff_factor);
  require(state.growth_interval > 0, where, "expected growth_interval > 0, found ", state.growth_interval);
  require(state.growth_tracker >= 0, where, "expected growth_tracker >= 0, found ", state.growth_tracker);
  state.scale = static_cast<float>(state.scale);
  return state;
}

GradScalerState updated(GradScalerState state, bool found_inf) {
  if (found_inf) {
    state.scale = static_cast<float>(state.scale * state.backoff_factor);
    state.growth_tracker = 0;
  } else if (++state.growth_tracker == state.growth_interval) {
    const auto grown = static_cast<float>(state.scale * state.growth_factor);
    if (std::isfinite(grown)) state.scale = grown;
    state.growth_tracker = 0;
  }
  return state;
}

float inverse_of(double scale) { return static_cast<float>(1.0 / scale); }

}  // namespace fsdp::amp
