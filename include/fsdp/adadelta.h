#pragma once
/// \file
/// Adadelta, which torch::optim does not have: options, state and files.

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace fsdp::optim {

/// Of Adadelta, with the defaults of Python's torch.optim.Adadelta.
struct AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1.0);  // NOLINT(google-explicit-constructor): as torch::optim's
  TORCH_ARG(double, lr) = 1.0;
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const AdadeltaOptions& a, const AdadeltaOptions& b);
  double get_lr() const override;
  void set_lr(double lr) override;
};

/// Of one parameter: the running means of the squares of its gradients and of its changes.
struct AdadeltaParamState : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, square_avg);
  TORCH_ARG(at::Tensor, acc_delta);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// What torch::optim's optimizers are to those of fsdp::optim, but for `step`.
class AdadeltaBase : public torch::optim::Optimizer {
 public:
  explicit AdadeltaBase(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                        const AdadeltaOptions& defaults = {});
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace fsdp::optim
