#pragma once
/// \file
/// What the element-wise optimizers of fsdp::optim have in common: steps and state that are flat.

#include <fsdp/scaled_step.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// How numbers are kept that a step writes. Only for rows on the CPU; a step throws UsageError otherwise.
///
///     const auto bf16 = fsdp::optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true};
///     fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-4), bf16);
struct StateOptions {
  /// Of the state's tensors, kFloat or kBFloat16; unset: that of the rows. What is computed has the precision of
  /// fp32, in fp64 rows of fp64.
  std::optional<at::ScalarType> state_dtype = std::nullopt;
  /// Whether bf16 numbers, of rows and of state, are rounded up as often as the distance to their lower neighbour says,
  /// so that their mean is what was rounded (N. Higham and T. Mary, Mixed precision algorithms in numerical linear
  /// algebra, 2022, section 4). A step throws UsageError where neither rows nor state are bf16.
  ///
  /// Rounding to the nearest loses changes of less than half a unit in the last place, 1/512 of the number: small
  /// updates of rows for ever, and of exp_avg_sq, which beta2 = 0.999 makes smaller by 1/1000, all that is to fade.
  ///
  /// The random numbers are those of Philox-4x32-10 (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3,
  /// 2011) for `seed`, the parameter's place in the optimizer, the element's place in the whole parameter and the step
  /// count, so they are the same for any number of ranks and after a run was resumed. SGD has no step count: it counts
  /// its steps from when it was made.
  bool stochastic_rounding = false;
  /// Of the random numbers of stochastic rounding. The same on every rank.
  uint64_t seed = 0;
};

/// An element-wise optimizer of fsdp::optim, whichever it is.
class FlatOptimizer : public ScaledStep {
 public:
  /// Bytes of this rank's state, also that of plain tensors, which no group counts.
  virtual int64_t state_bytes() const = 0;
  /// As it was made with.
  const StateOptions& state_options() const { return state_options_; }

 protected:
  /// For the optimizers of fsdp::optim.
  explicit FlatOptimizer(const StateOptions& state_options);

 private:
  StateOptions state_options_;
};

/// An optimizer of torch::optim with one fused pass over memory instead of a dozen operators for each parameter.
///
/// Options, groups of options, `add_param_group`, `zero_grad`, state and files are those of the base class, so
/// schedulers take it and each loads what the other saved. It takes rows of sharded parameters, of several models, and
/// plain tensors, in any mixture, and may be made before or after `fully_shard`.
///
/// A step is one pass for each run: a stretch of a group's rows whose parameters have equal options and step counts and
/// whose gradients lie as the rows do, as backward hands them out. Nothing is copied. State is made when a parameter
/// first has a gradient, as parts of blocks that lie as the rows do; `Group::stats().optimizer` counts it. The result
/// is torch::optim's up to rounding. On the CPU an element's bits do not depend on where it lies, so neither on the
/// number of ranks; LibTorch's profiler shows a pass as "fsdp::optim::AdamW".
///
/// `step` is not collective, but every rank has to call it; ranks that share memory may have to wait in it for the
/// readers of their rows. `load` takes what the same rank saved with the same number of ranks.
///
/// Errors: UsageError for options that cannot be right, when it is made and, before anything is written, in `step`;
/// there also in a forward scope or a backward, when a gradient or a loaded state has other sizes than the rows, for
/// plain tensors with gaps in memory, and for a centered RMSprop whose state would be bf16 or fp16. Thread safety: as
/// its base class; groups are locked while their rows are written.
template <class Torchs, class OptionsOfTorchs>
class Flat : public Torchs, public FlatOptimizer {
 public:
  /// Those of the base class.
  using Options = OptionsOfTorchs;
  /// Computes a loss and its gradients, or null; see torch::optim::Optimizer::step.
  using Closure = torch::optim::Optimizer::LossClosure;

  /// Of groups of parameters, each with options of its own or the `defaults`. Throws UsageError for options that cannot
  /// be right.
  explicit Flat(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults = {},
                const StateOptions& state_options = {});
  /// Of parameters that all have the same options.
  explicit Flat(std::vector<at::Tensor> parameters, Options defaults = {}, const StateOptions& state_options = {});

  /// `step_scaled` by 1. A loss scaler calls that, so who changes what a step is overrides it.
  at::Tensor step(Closure closure = nullptr) final;
  /// See ScaledStep. Every rank has to call it, as `step`.
  at::Tensor step_scaled(double factor, Closure closure = nullptr) override;
  /// Reads what `save` of this class or of the base class wrote on the same rank, for the same rows. State is converted
  /// to StateOptions::state_dtype.
  void load(torch::serialize::InputArchive& archive) override;
  /// Of this rank's state, see FlatOptimizer.
  int64_t state_bytes() const override;

 private:
  int64_t steps_ = 0;  // since it was made
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
