#pragma once
/// \file
/// Common base of fsdp::optim's element-wise optimizers, which fuse a step into one pass over flat memory.

#include <fsdp/scaled_step.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// Options that say how a step stores numbers. Values other than the defaults need rows on the CPU; otherwise a step
/// throws UsageError.
///
///     const auto bf16 = fsdp::optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true};
///     fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-4), bf16);
struct StateOptions {
  /// Dtype of the state's tensors, kFloat or kBFloat16; if unset, the dtype of the rows. A step computes in fp32, or in
  /// fp64 if the rows are fp64.
  std::optional<at::ScalarType> state_dtype = std::nullopt;
  /// True if a step rounds bf16 rows and bf16 state stochastically: it rounds up with a probability proportional to the
  /// distance from the lower neighbour, so that the expected value is exact (N. Higham and T. Mary, Mixed precision
  /// algorithms in numerical linear algebra, 2022, section 4). A step throws UsageError if neither the rows nor the
  /// state are bf16.
  ///
  /// In contrast, rounding to nearest loses every change that is smaller than half a unit in the last place, i.e. than
  /// 1/512 to 1/256 of the number. Small updates of rows are then lost, and exp_avg_sq does not decay with beta2 =
  /// 0.999, because the decay of one step is only 1/1000.
  ///
  /// Random numbers come from Philox-4x32-10 (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
  /// They depend only on `seed`, the parameter's index in the optimizer, the element's index in the whole parameter,
  /// and the step count. They are therefore the same for any number of ranks and after a run is resumed, except that
  /// SGD, which saves no step count, counts steps from its construction.
  bool stochastic_rounding = false;
  /// Seed of stochastic rounding; must be the same on every rank.
  uint64_t seed = 0;
};

/// Interface of all element-wise optimizers of fsdp::optim.
class FlatOptimizer : public ScaledStep {
 public:
  /// Returns the number of bytes of this rank's optimizer state. It includes the state of plain tensors, which
  /// `Group::stats()` does not count.
  virtual int64_t state_bytes() const = 0;
  /// Returns the options that were passed to the constructor.
  const StateOptions& state_options() const { return state_options_; }

 protected:
  /// Constructor for derived classes.
  explicit FlatOptimizer(const StateOptions& state_options);

 private:
  StateOptions state_options_;
};

/// An optimizer of torch::optim whose step is one fused pass over memory instead of a dozen operators per parameter.
///
/// Options, parameter groups, `add_param_group`, `zero_grad`, state and files are those of the base class. LibTorch's
/// schedulers therefore accept the optimizer, and each of the two classes loads what the other one saved. Parameters
/// may be sharded parameters of one or several models and plain tensors, in any combination. You may make the optimizer
/// before or after `fully_shard`.
///
/// A step makes one pass over each run of neighbouring rows, i.e. rows of parameters that have equal options and step
/// counts and gradients in the rows' layout, as backward leaves them. Nothing is copied. State is allocated when a
/// parameter first has a gradient, in blocks with the rows' layout; `Group::stats().optimizer` counts it. Results equal
/// those of torch::optim up to rounding. On the CPU, an element's bits do not depend on its place in memory, nor on the
/// number of ranks. LibTorch's profiler shows a pass as "fsdp::optim::AdamW" (or another optimizer's name).
///
/// `step` is not collective, but every rank must call it, because ranks that share memory wait in `step` until no rank
/// reads their rows. `load` takes an archive that the same rank saved with the same number of ranks.
///
/// The constructor throws UsageError for invalid options. `step` throws UsageError for invalid options, in a forward
/// scope or a backward, for a gradient or a loaded state whose sizes are not those of the rows, for plain tensors with
/// gaps in memory, and for a centered RMSprop with bf16 or fp16 state; nothing has then been written. The class is as
/// thread-safe as its base class; `step` locks the groups while it writes their rows.
template <class Torchs, class OptionsOfTorchs>
class Flat : public Torchs, public FlatOptimizer {
 public:
  /// Options of the base class.
  using Options = OptionsOfTorchs;
  /// Function that computes gradients and returns the loss; see torch::optim::Optimizer::step.
  using Closure = torch::optim::Optimizer::LossClosure;

  /// Takes parameter groups; a group without options of its own uses `defaults`. Throws UsageError for invalid options.
  explicit Flat(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults = {},
                const StateOptions& state_options = {});
  /// Takes parameters, all of which use `defaults`.
  explicit Flat(std::vector<at::Tensor> parameters, Options defaults = {}, const StateOptions& state_options = {});

  /// Calls `step_scaled(1)`. Loss scalers call `step_scaled`, so to change the step, override that function.
  at::Tensor step(Closure closure = nullptr) final;
  /// Steps as if each gradient were multiplied by `factor`; see ScaledStep. Every rank must call it, like `step`.
  at::Tensor step_scaled(double factor, Closure closure = nullptr) override;
  /// Loads what `save` of this class or of the base class wrote on the same rank, for the same rows, and converts the
  /// state to StateOptions::state_dtype.
  void load(torch::serialize::InputArchive& archive) override;
  /// Returns the number of bytes of this rank's optimizer state; see FlatOptimizer.
  int64_t state_bytes() const override;

 private:
  int64_t steps_ = 0;  // number of steps since construction
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
