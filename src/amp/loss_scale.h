#pragma once
/// \file
/// Arithmetic of the loss scale. These functions have no side effects.

#include <fsdp/grad_scaler.h>

#include <string>

namespace fsdp::amp {

/// Returns the state with its scale rounded to float, which is the dtype of the scale in torch.amp. Throws UsageError,
/// with a message that begins with `where`, if a number is out of range.
GradScalerState checked(GradScalerState state, const std::string& where);

/// Returns the state after an iteration; `found_inf` is true if a gradient was inf or NaN. The scale is rounded to
/// float and never becomes infinite.
GradScalerState updated(GradScalerState state, bool found_inf);

/// Returns 1 / scale, by which the gradients are multiplied.
float inverse_of(double scale);

}  // namespace fsdp::amp
