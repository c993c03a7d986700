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

/// How a step stores numbers. Other values than the defaults need rows on the CPU; a step throws UsageError otherwise.
///
///     const auto bf16 = fsdp::optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true};
///     fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-4), bf16);
struct StateOptions {
  /// Dtype of the state's tensors, kFloat or kBFloat16; unset: the rows' dtype. Computations use fp32, or fp64 if the
  /// rows are fp64.
  std::optional<at::ScalarType> state_dtype = std::nullopt;
  /// Whether bf16 rows and bf16 state are rounded stochastically: up with a probability proportional to the distance
  /// from the lower neighbour, so that the expected value is exact (N. Higham and T. Mary, Mixed precision algorithms
  /// in numerical linear algebra, 2022, section 4). A step throws UsageError if neither the rows nor the state are
  /// bf16.
  ///
  /// Rounding to nearest loses every change that is smaller than half a unit in the last place, which is 1/512 to 1/256
  /// of the number. Small updates of rows are lost for ever, and exp_avg_sq does not decay with beta2 = 0.999, which
  /// changes it by only 1/1000.
  ///
  /// Random numbers come from Philox-4x32-10 (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
  /// They depend on `seed`, the parameter's index in the optimizer, the element's index in the whole parameter, and the
  /// step count, so they do not depend on the number of ranks and continue after a run is resumed. SGD, which saves no
  /// step count, counts from its construction.
  bool stochastic_rounding = false;
  /// Seed of stochastic rounding. Must be the same on every rank.
  uint64_t seed = 0;
};

/// Interface of all element-wise optimizers of fsdp::optim.
class FlatOptimizer : public ScaledStep {
 public:
  /// Bytes of this rank's optimizer state, including the state of plain tensors, which `Group::stats()` does not count.
  virtual int64_t state_bytes() const = 0;
  /// The options that were passed to the constructor.
  const StateOptions& state_options() const { return state_options_; }

 protected:
  /// For derived classes.
  explicit FlatOptimizer(const StateOptions& state_options);

 private:
  StateOptions state_options_;
};

/// An optimizer of torch::optim whose step is one fused pass over memory instead of a dozen operators per parameter.
///
/// Options, parameter groups, `add_param_group`, `zero_grad`, state and files are those of the base class, so
/// schedulers accept it, and each class loads what the other one saved. Parameters may be sharded, of several models,
/// or plain tensors, in any combination. The optimizer may be made before or after `fully_shard`.
///
/// A step makes one pass over each run of neighbouring rows whose parameters have equal options and step counts and
/// whose gradients have the rows' layout, as backward leaves them. Nothing is copied. State is allocated when a
/// parameter first has a gradient, in blocks with the rows' layout; `Group::stats().optimizer` counts it. Results equal
/// those of torch::optim up to rounding. On the CPU, an element's bits do not depend on its place in memory, nor on the
/// number of ranks. LibTorch's profiler shows a pass as "fsdp::optim::AdamW" (or another optimizer's name).
///
/// `step` is not collective, but every rank must call it, since ranks that share memory wait in it until no rank reads
/// their rows. `load` takes what the same rank saved, with the same number of ranks.
///
/// The constructor throws UsageError for invalid options. `step` throws UsageError, before it writes anything, for
/// invalid options, in a forward scope or a backward, if a gradient or a loaded state has other sizes than the rows,
/// for plain tensors with gaps in memory, and for a centered RMSprop with bf16 or fp16 state. Threads: as for the base
/// class; `step` locks the groups while it writes their rows.
template <class Torchs, class OptionsOfTorchs>
class Flat : public Torchs, public FlatOptimizer {
 public:
  /// The base class's options.
  using Options = OptionsOfTorchs;
  /// Computes and returns a loss and its gradients; see torch::optim::Optimizer::step.
  using Closure = torch::optim::Optimizer::LossClosure;

  /// Takes parameter groups; a group without options of its own uses `defaults`. Throws UsageError for invalid options.
  explicit Flat(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults = {},
                const StateOptions& state_options = {});
  /// Takes parameters that all use `defaults`.
  explicit Flat(std::vector<at::Tensor> parameters, Options defaults = {}, const StateOptions& state_options = {});

  /// Calls `step_scaled(1)`. Loss scalers call `step_scaled`, so to change the step, override that function.
  at::Tensor step(Closure closure = nullptr) final;
  /// See ScaledStep. Every rank must call it, like `step`.
  at::Tensor step_scaled(double factor, Closure closure = nullptr) override;
  /// Loads what `save` of this class or of the base class wrote on the same rank, for the same rows, and converts the
  /// state to StateOptions::state_dtype.
  void load(torch::serialize::InputArchive& archive) override;
  /// See FlatOptimizer.
  int64_t state_bytes() const override;

 private:
  int64_t steps_ = 0;  // number of steps since construction
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
