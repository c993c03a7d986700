#pragma once
/// \file
/// Pure: the next scale of losses.

#include <fsdp/grad_scaler.h>

#include <string>

namespace fsdp::amp {

/// The state with its scale as a float, as torch.amp has it. Throws UsageError for numbers with which a scale would not
/// find its size.
GradScalerState checked(GradScalerState state, const std::string& where);

/// After an iteration. The scale is a float, as torch.amp's, and does not grow to infinity.
GradScalerState updated(GradScalerState state, bool found_inf);

/// By which gradients are multiplied.
float inverse_of(double scale);

}  // namespace fsdp::amp
