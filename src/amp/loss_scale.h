#pragma once
/// \file
/// Computation of the next loss scale. Pure functions.

#include <fsdp/grad_scaler.h>

#include <string>

namespace fsdp::amp {

/// Returns the state with its scale rounded to float, as in torch.amp. Throws UsageError for numbers that are out of
/// range.
GradScalerState checked(GradScalerState state, const std::string& where);

/// The state after an iteration. The scale is a float, as in torch.amp, and never becomes infinite.
GradScalerState updated(GradScalerState state, bool found_inf);

/// The factor of the gradients.
float inverse_of(double scale);

}  // namespace fsdp::amp
