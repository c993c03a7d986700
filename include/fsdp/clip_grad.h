#pragma once
/// \file
/// Gradient clipping over all ranks.

#include <fsdp/group.h>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup optimizers
/// \{

/// Scales the gradients so that their norm over all parameters and ranks is at most `max_norm`; returns the norm
/// before.
///
/// The norm is (sum |g|^p)^(1/p) over all gradients of sharded parameters under `model`, p = `norm_type` > 0, or the
/// maximum for infinity. Every gradient is multiplied by min(1, max_norm / (norm + 1e-6)), as
/// torch.nn.utils.clip_grad_norm_ does; a norm that is NaN makes every gradient NaN. Parameters without a gradient
/// count as zero. A tensor that is registered under two names counts once; LibTorch's function, which gets the list of
/// a module's parameters, counts it twice. Call it after backward, outside scopes. Collective; one thread.
///
/// On the CPU the norm has the same bits for any number of ranks, any groups and any cut of the rows, if the gradients
/// have: |g|^p is summed in fp64 over each row, which one rank has whole, in an order given by the row's length; the
/// rows' sums are added as integers (U. Kulisch and W. Miranker, The Arithmetic of the Digital Computer, 1986), which
/// is exact and therefore the same in any order. Where the number of ranks decides how long a parameter's rows are (see
/// LocalRowRange), last bits may differ. On other devices LibTorch sums the rows. Gradients are not copied, and ranks
/// exchange 552 bytes.
///
/// Throws UsageError inside a scope, for a negative `max_norm`, while gradients wait for a backward that synchronises,
/// and for a stage of a Pipeline, which is passed itself (pipeline.h); Mismatch if ranks give different arguments, and
/// Error if `error_if_nonfinite` and the norm is not finite; on every rank alike, and the gradients are as before.
///
///     loss.backward();
///     double norm = fsdp::clip_grad_norm_(model, 1.0);
double clip_grad_norm_(const Group& model, double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

/// The norm alone, as clip_grad_norm_ returns it: one pass that reads gradients.
///
/// With `clip_coefficient` it clips without a pass that writes, since optimizers of fsdp::optim take a factor:
///
///     const double norm = fsdp::get_total_norm(model);
///     optimizer.step_scaled(fsdp::clip_coefficient(norm, 1.0));
///
/// Rows get the bits that clip_grad_norm_ and `step` give. Of gradients that a loss scaler multiplied by `scale`:
/// `fsdp::clip_coefficient(norm / scale, 1.0) / scale`; the norm is not finite if a gradient on any rank is not.
///
/// Collective; it throws as clip_grad_norm_ does.
[[nodiscard]] double get_total_norm(const Group& model, double norm_type = 2.0, bool error_if_nonfinite = false);

/// min(1, max_norm / (total_norm + 1e-6)), as torch.nn.utils.clip_grads_with_norm_ computes it.
[[nodiscard]] double clip_coefficient(double total_norm, double max_norm);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
