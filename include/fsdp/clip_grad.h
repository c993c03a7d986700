#pragma once
/// \file
/// Gradient clipping over all ranks.

#include <fsdp/group.h>

namespace fsdp {

/// Scales the gradients so that their norm over all parameters and ranks is at most `max_norm`; returns the norm before.
///
/// norm_type: 2, another p >= 1, or infinity. The norm of each parameter is summed in fp64. Parameters without a gradient
/// count as zero. Collective. Throws UsageError inside a scope, and Error if `error_if_nonfinite` and the norm is not
/// finite (on every rank alike).
///
///     loss.backward();
///     double norm = fsdp::clip_grad_norm_(model, 1.0);
double clip_grad_norm_(const Group& model, double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace fsdp
