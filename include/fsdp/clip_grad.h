#pragma once
/// \file
/// Gradient clipping over all ranks.

#include <fsdp/group.h>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup optimizers
/// \{

/// Scales the gradients so that their norm over all parameters and ranks is at most `max_norm`. Returns the norm before
/// scaling.
///
/// The norm is (sum |g|^p)^(1/p) over all gradients of sharded parameters under `model`, where p is `norm_type` and
/// greater than 0; for infinity it is the largest |g|. Every gradient is multiplied by min(1, max_norm / (norm +
/// 1e-6)), as torch.nn.utils.clip_grad_norm_ does; a norm that is NaN makes every gradient NaN. Parameters without a
/// gradient count as zero. A tensor that is registered under two names counts once; LibTorch's function counts it
/// twice. Call this function after backward, outside scopes, from one thread. Collective.
///
/// On the CPU equal gradients give a norm with the same bits for any number of ranks, any groups and any distribution
/// of the rows. One rank has the whole of each row and sums its |g|^p in fp64, in an order that depends only on the
/// row's length; the sums of rows are added as integers (U. Kulisch and W. Miranker, The Arithmetic of the Digital
/// Computer, 1986), which is exact and therefore the same in any order. For a parameter whose rows are shorter than
/// those of dim 0 (see LocalRowRange), the number of ranks decides the length of the rows, so the last bits may differ.
/// On other devices LibTorch sums the rows. Gradients are not copied, and ranks exchange 552 bytes.
///
/// Throws UsageError inside a scope, for a negative `max_norm`, while gradients of no_sync() are pending, and for a
/// stage of a Pipeline (pass the Pipeline, see pipeline.h). Throws Mismatch if ranks pass different arguments, and
/// Error if the norm is not finite and `error_if_nonfinite` is true. Every rank throws the same error, and the
/// gradients are unchanged.
///
///     loss.backward();
///     double norm = fsdp::clip_grad_norm_(model, 1.0);
double clip_grad_norm_(const Group& model, double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

/// Returns the norm that clip_grad_norm_ would return, without changing gradients.
///
/// Together with `clip_coefficient` it replaces clip_grad_norm_ without a pass that writes gradients, because
/// optimizers of fsdp::optim can multiply them by a factor:
///
///     const double norm = fsdp::get_total_norm(model);
///     optimizer.step_scaled(fsdp::clip_coefficient(norm, 1.0));
///
/// The rows get the same bits as from clip_grad_norm_ and `step`. For gradients that a loss scaler multiplied by
/// `scale`, pass `fsdp::clip_coefficient(norm / scale, 1.0) / scale`. The norm is not finite if a gradient on any rank
/// is not finite.
///
/// Collective. Throws what clip_grad_norm_ throws.
[[nodiscard]] double get_total_norm(const Group& model, double norm_type = 2.0, bool error_if_nonfinite = false);

/// Returns min(1, max_norm / (total_norm + 1e-6)), as torch.nn.utils.clip_grads_with_norm_ computes it.
[[nodiscard]] double clip_coefficient(double total_norm, double max_norm);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
