#pragma once
/// \file
/// Loss scaling, which keeps small fp16 gradients from becoming zero.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup precision
/// \{

class ProcessGroup;

/// Options of GradScaler: the initial loss scale, and how it changes. Every rank must pass the same options.
struct GradScalerOptions {
  /// Initial scale; must be greater than 0.
  double init_scale = 65536.0;
  /// Factor by which the scale grows; must be greater than 1.
  double growth_factor = 2.0;
  /// Factor by which the scale is multiplied after an inf or NaN; must be between 0 and 1.
  double backoff_factor = 0.5;
  /// Number of consecutive updates without inf or NaN after which the scale grows; must be greater than 0.
  int64_t growth_interval = 2000;
  /// True if the scaler scales losses. If false, calls have no effect, except that `step` calls the optimizer's `step`.
  bool enabled = true;
  /// Ranks that share one scale. Set this field if some optimizer has no parameter that is sharded over all of these
  /// ranks, because gradients of unsharded tensors may overflow on some ranks only, for example in unsharded stages of
  /// a Pipeline. These ranks then decide together whether each optimizer steps, so each rank must call `unscale_` or
  /// `step` for each optimizer. If null, the ranks of the optimizer's sharded parameters decide, together with the
  /// ranks over which their models are split (TensorCut, Pipeline).
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

/// State of a GradScaler that can be saved and loaded: the entries of torch.amp.GradScaler's state_dict.
struct GradScalerState {
  double scale = 0;             ///< scale of the next iteration
  double growth_factor = 0;     ///< as in GradScalerOptions
  double backoff_factor = 0;    ///< as in GradScalerOptions
  int64_t growth_interval = 0;  ///< as in GradScalerOptions
  int64_t growth_tracker = 0;   ///< number of updates without inf or NaN since the scale changed
  /// Returns true if all fields are equal.
  bool operator==(const GradScalerState&) const = default;
};

/// Dynamic loss scaling like torch.amp.GradScaler's, for sharded models (P. Micikevicius et al., Mixed Precision
/// Training, 2018, section 3.2). The scaler multiplies losses by a scale and divides gradients by that scale. If a
/// gradient has an inf or a NaN on any rank, the step is skipped on all ranks.
///
///     fsdp::GradScaler scaler;
///     for (const auto& batch : *loader) {
///       optimizer.zero_grad();
///       scaler.scale(loss(model(batch.data), batch.target)).backward();
///       scaler.unscale_(optimizer);          // only if something reads or changes gradients before the step
///       fsdp::clip_grad_norm_(model, 1.0);
///       scaler.step(optimizer);
///       scaler.update();
///     }
///
/// The scaler works with any optimizer of torch::optim and fsdp::optim, with sharded parameters of one or several
/// models, with unsharded tensors, and with several optimizers per iteration. The scaler checks and unscales the
/// gradients of a group's rows in place, in one pass; ranks exchange three numbers per optimizer and process group.
/// Ranks with different scales get a Mismatch. The scale is stored on the host. The host waits for an accelerator only
/// in `step`, in `update` after `unscale_` without `step`, and in `unscale_` on a rank without gradients or scaled
/// losses.
///
/// Unlike torch.amp's scaler, this scaler accepts fp16 gradients, which fp16 rows have. If `unscale_` divides such
/// gradients, quotients that are too small for fp16 are lost.
///
/// `unscale_` and `step` are collective over the ranks of the optimizer's sharded parameters and of
/// GradScalerOptions::process_group, even on ranks without gradients or, in fsdp::join, without data. Call both
/// functions outside scopes and backwards, from one thread. After a call of `unscale_` or `step`, do not move or
/// destroy the optimizer before the next `update`.
class GradScaler {
 public:
  /// Makes a scaler. Throws UsageError unless init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1 and
  /// growth_interval > 0.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// Returns the outputs, usually a loss, times the scale. A scalar of lower precision than fp32 becomes fp32.
  [[nodiscard]] at::Tensor scale(const at::Tensor& outputs);
  /// Scales each of the outputs.
  [[nodiscard]] std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, in place, and checks them for inf and NaN.
  /// Throws UsageError, before anything is changed, if no rank has called `scale`; if `unscale_` or `step` was called
  /// for this optimizer since the last `update`; in a scope or backward; and while gradients of Group::no_sync are
  /// pending. Also throws what Work::wait throws.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Calls `unscale_` unless you have called it, and then `optimizer.step()` if the gradients of all ranks are finite.
  /// An optimizer of fsdp::optim instead divides gradients while it reads them (ScaledStep), so `.grad` stays scaled
  /// and no quotient is rounded to fp16. Returns the optimizer's result, or an undefined tensor if the step was
  /// skipped. Throws UsageError where `unscale_` would, and also if `step` was called for this optimizer since the last
  /// `update`, if the optimizer has no gradient, and for a closure, because the scaler could not check the closure's
  /// gradients. A disabled scaler passes the closure on to the optimizer.
  at::Tensor step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Ends an iteration: the scale grows, shrinks or stays, depending on the gradients of all optimizers; if `new_scale`
  /// is given, the scale becomes `new_scale`. Not collective. Throws UsageError if no loss was scaled, if `new_scale`
  /// is not greater than 0, and, without `new_scale`, if no gradients were checked.
  void update(std::optional<double> new_scale = std::nullopt);

  /// Returns the current scale; 1 if the scaler is disabled.
  double get_scale() const;
  /// Returns true if the scaler is enabled.
  bool is_enabled() const { return enabled_; }

  /// Returns the state from which `load` continues. Call this function between `update` and `scale`. Not collective.
  /// save_checkpoint and load_checkpoint accept the scaler itself, see SaveOptions and LoadOptions.
  GradScalerState state() const { return state_; }
  /// Continues from a saved state, which must be the same on every rank. An unfinished iteration is dropped, so the
  /// next one begins with `scale`. Throws UsageError for numbers that the constructor refuses. Does nothing if the
  /// scaler is disabled.
  void load(const GradScalerState& state);

 private:
  enum class Stage : uint8_t { kReady, kUnscaled, kStepped };
  struct Iteration {
    Stage stage = Stage::kReady;
    at::Tensor found_inf = {};  // greater than 0 if a gradient was not finite; undefined if there was no gradient
    std::optional<bool> is_inf = std::nullopt;
  };
  static bool has_inf(Iteration& iteration);
  at::Tensor find_inf(const torch::optim::Optimizer& optimizer, bool divides, const char* operation);

  bool enabled_, has_scaled_ = false;  // has_scaled_: true if any rank called `scale`
  std::shared_ptr<ProcessGroup> process_group_;
  GradScalerState state_;
  std::unordered_map<const torch::optim::Optimizer*, Iteration> iterations_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
