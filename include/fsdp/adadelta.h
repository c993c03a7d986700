#pragma once
/// \file
/// Options and state of Adadelta, an optimizer that torch::optim does not have.

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <vector>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// Options of Adadelta, with the defaults of Python's torch.optim.Adadelta.
struct AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  /// Sets the learning rate and leaves the other options at their defaults.
  AdadeltaOptions(double lr = 1.0);     // NOLINT(google-explicit-constructor): as torch::optim's
  TORCH_ARG(double, lr) = 1.0;          ///< factor by which each step is multiplied
  TORCH_ARG(double, rho) = 0.9;         ///< decay of both running means
  TORCH_ARG(double, eps) = 1e-6;        ///< number added to the running means before the square roots
  TORCH_ARG(double, weight_decay) = 0;  ///< `weight_decay * parameter` is added to the gradient

 public:
  /// Reads options that the other overload wrote.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes each option under its name.
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// Returns true if all options are equal.
  friend bool operator==(const AdadeltaOptions& a, const AdadeltaOptions& b);
  /// Returns the learning rate, for schedulers.
  double get_lr() const override;
  /// Sets the learning rate, for schedulers.
  void set_lr(double lr) override;
};

/// State of one parameter: running means of its squared gradients and squared updates.
struct AdadeltaParamState : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(int64_t, step) = 0;       ///< number of steps in which the parameter had a gradient
  TORCH_ARG(at::Tensor, square_avg);  ///< running mean of squared gradients, with the rows' sizes
  TORCH_ARG(at::Tensor, acc_delta);   ///< running mean of squared updates, with the rows' sizes

 public:
  /// Reads state that the other overload wrote.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes the step count and each tensor under its name.
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Base class of fsdp::optim::Adadelta, with parameter groups, state, `save` and `load`, but without `step`. Use
/// fsdp::optim::Adadelta.
class AdadeltaBase : public torch::optim::Optimizer {
 public:
  /// Takes parameter groups; a group without options of its own uses `defaults`.
  explicit AdadeltaBase(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                        const AdadeltaOptions& defaults = {});
  /// Adds a group, which keeps its own options or gets the defaults. LibTorch's add_param_group would replace
  /// AdadeltaOptions, a type that it does not know, by the defaults.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// Writes options and state, as torch::optim's optimizers do.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads options and state that `save` wrote for the same parameters.
  void load(torch::serialize::InputArchive& archive) override;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
