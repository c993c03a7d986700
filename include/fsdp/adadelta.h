#pragma once
/// \file
/// Adadelta, which torch::optim does not have: options, state and files.

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <vector>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// Of Adadelta, with the defaults of Python's torch.optim.Adadelta.
struct AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  /// With this learning rate.
  AdadeltaOptions(double lr = 1.0);     // NOLINT(google-explicit-constructor): as torch::optim's
  TORCH_ARG(double, lr) = 1.0;          ///< by which the step is multiplied
  TORCH_ARG(double, rho) = 0.9;         ///< how much of a mean is kept in a step
  TORCH_ARG(double, eps) = 1e-6;        ///< added to the means before their roots are taken
  TORCH_ARG(double, weight_decay) = 0;  ///< the share of the parameter that is added to its gradient

 public:
  /// Reads what the other one wrote.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes each option under its name.
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// Whether all options are equal.
  friend bool operator==(const AdadeltaOptions& a, const AdadeltaOptions& b);
  /// What schedulers read.
  double get_lr() const override;
  /// What schedulers write.
  void set_lr(double lr) override;
};

/// Of one parameter: the running means of the squares of its gradients and of its changes.
struct AdadeltaParamState : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(int64_t, step) = 0;       ///< steps that this parameter had a gradient in
  TORCH_ARG(at::Tensor, square_avg);  ///< v in the formula of Adadelta, of the sizes of the rows
  TORCH_ARG(at::Tensor, acc_delta);   ///< u in the formula of Adadelta, of the sizes of the rows

 public:
  /// Reads what the other one wrote.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes each tensor under its name.
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// What torch::optim's optimizers are to those of fsdp::optim, but for `step`. Use fsdp::optim::Adadelta.
class AdadeltaBase : public torch::optim::Optimizer {
 public:
  /// Of groups of parameters, each with options of its own or the `defaults`.
  explicit AdadeltaBase(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                        const AdadeltaOptions& defaults = {});
  /// Adds a group, with the options that it has or the defaults. (LibTorch's own function merges options of its own
  /// types only, and gives a group with any others the defaults.)
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// Writes options and state, as the optimizers of torch::optim do.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads what `save` wrote for the same parameters.
  void load(torch::serialize::InputArchive& archive) override;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
