#pragma once
/// \file
/// Scaling of losses, so that gradients of fp16 do not vanish.

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

/// How a loss scale begins and changes. The same on every rank.
struct GradScalerOptions {
  /// The first scale; above 0.
  double init_scale = 65536.0;
  /// By which the scale grows after `growth_interval` updates in a row without inf or NaN; above 1.
  double growth_factor = 2.0;
  /// By which it is multiplied after an inf or NaN; below 1.
  double backoff_factor = 0.5;
  /// In updates; above 0.
  int64_t growth_interval = 2000;
  /// Without it every call does nothing, but for `step`, which is the optimizer's.
  bool enabled = true;
  /// The ranks that have one scale, if some optimizer has none of the parameters that are sharded over all of them:
  /// each rank may have another inf in the gradients of plain tensors, e.g. in stages of a Pipeline that are not
  /// sharded. Every optimizer's gradients are decided on by all of these ranks then, so each of them calls `unscale_`
  /// or `step` for it. Null: by the ranks of the optimizer's sharded parameters, and those over which their models are
  /// split (TensorCut, Pipeline).
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

/// What a GradScaler goes on from; the entries of torch.amp.GradScaler's state_dict.
struct GradScalerState {
  double scale = 0;             ///< of the next iteration
  double growth_factor = 0;     ///< as in GradScalerOptions
  double backoff_factor = 0;    ///< as in GradScalerOptions
  int64_t growth_interval = 0;  ///< as in GradScalerOptions
  int64_t growth_tracker = 0;   ///< updates without inf or NaN since the scale changed
  /// Whether all numbers are equal.
  bool operator==(const GradScalerState&) const = default;
};

/// torch.amp.GradScaler for sharded models: losses are multiplied by a scale, gradients divided by it, and a step whose
/// gradients hold an inf or a NaN on any rank is skipped on all of them (dynamic loss scaling: P. Micikevicius et al.,
/// Mixed Precision Training, 2018, section 3.2).
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
/// It takes any optimizer of torch::optim and fsdp::optim, of rows of one or several models, of plain tensors and of
/// both, and several optimizers in one iteration. Gradients of a group's rows lie one behind the other and are read and
/// written in one pass, where they are; ranks exchange one number for each optimizer and process group. All ranks have
/// the same scale, and get a Mismatch otherwise. It is the host's: nothing waits for an accelerator but `step`, which
/// has to know whether to call the optimizer, and `update` where `unscale_` was called without `step`.
///
/// Unlike torch.amp's it takes gradients of fp16 too, for rows of fp16; what is too small for fp16 when `unscale_` has
/// divided it is lost in them.
///
/// `unscale_` and `step` are collective over the ranks of the optimizer's sharded parameters and those of
/// GradScalerOptions::process_group, outside of scopes and backwards, whether or not a rank has gradients or, in
/// fsdp::join, data. One thread. An optimizer stays where it is between `unscale_` or `step` and `update`.
class GradScaler {
 public:
  /// Throws UsageError unless init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1 and growth_interval > 0.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// The outputs, usually a loss, times the scale; in fp32 where a loss without dimensions is of lower precision.
  [[nodiscard]] at::Tensor scale(const at::Tensor& outputs);
  /// The same of several.
  [[nodiscard]] std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, in place, and looks for inf and NaN in them.
  /// Throws UsageError, before anything is changed, without a `scale` before on any rank; twice, or after `step`,
  /// before `update`; in a scope or backward; while gradients wait for a backward that synchronises. Else what
  /// Work::wait throws.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Calls `unscale_` unless that was done, then `optimizer.step()`, unless a gradient on some rank was not finite. The
  /// optimizers of fsdp::optim divide on their way through the gradients instead (ScaledStep): `.grad` keeps the scale
  /// then, and a quotient too small for fp16 is not lost. Returns what the optimizer returns, undefined if it was not
  /// called. Throws UsageError as `unscale_` does, twice before `update`, for optimizers without any gradient, and with
  /// a closure, whose gradients nobody would have looked at (without `enabled` it is passed on).
  at::Tensor step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Ends an iteration: the scale grows, shrinks or stays by what all optimizers' gradients had, or becomes
  /// `new_scale`. Not collective. Throws UsageError if no gradients were looked at, and unless `new_scale` is above 0.
  void update(std::optional<double> new_scale = std::nullopt);

  /// 1 without `enabled`.
  double get_scale() const;
  /// GradScalerOptions::enabled.
  bool is_enabled() const { return enabled_; }

  /// What `load` goes on from, between `update` and `scale`. save_checkpoint and load_checkpoint take the scaler
  /// itself, see SaveOptions and LoadOptions. Not collective.
  GradScalerState state() const { return state_; }
  /// Goes on from there; every rank alike. It gives up what an iteration was at, as after a step that failed, so the
  /// next one begins with `scale`. It throws UsageError as the constructor does, and does nothing without `enabled`.
  void load(const GradScalerState& state);

 private:
  enum class Stage : uint8_t { kReady, kUnscaled, kStepped };
  struct Iteration {
    Stage stage = Stage::kReady;
    at::Tensor found_inf = {};  // above 0 if so; undefined: there was no gradient
    std::optional<bool> is_inf = std::nullopt;
  };
  static bool has_inf(Iteration& iteration);
  at::Tensor find_inf(const torch::optim::Optimizer& optimizer, bool divides, const char* operation);

  bool enabled_, has_scaled_ = false;  // the latter of any rank
  std::shared_ptr<ProcessGroup> process_group_;
  GradScalerState state_;
  std::unordered_map<const torch::optim::Optimizer*, Iteration> iterations_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
