#pragma once
/// \file
/// Adadelta as Python's torch.optim.Adadelta computes it, parameter by parameter, by the same operators.

#include <fsdp/optim.h>

namespace fsdp::test {

class ReferenceAdadelta : public torch::optim::Optimizer {
 public:
  template <class Parameters>
  ReferenceAdadelta(const Parameters& parameters, const optim::AdadeltaOptions& defaults)
      : Optimizer(parameters, std::make_unique<optim::AdadeltaOptions>(defaults)) {}

  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_)
      for (auto& parameter : group.params())
        if (parameter.grad().defined()) step_one(parameter, static_cast<optim::AdadeltaOptions&>(group.options()));
    return {};
  }

 private:
  void step_one(torch::Tensor& parameter, const optim::AdadeltaOptions& options) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (!slot) {
      auto fresh = std::make_unique<optim::AdadeltaParamState>();
      fresh->square_avg(torch::zeros_like(parameter)).acc_delta(torch::zeros_like(parameter));
      slot = std::move(fresh);
    }
    auto& state = static_cast<optim::AdadeltaParamState&>(*slot);
    auto gradient = parameter.grad();
    if (options.weight_decay() != 0) gradient = gradient.add(parameter, options.weight_decay());
    state.square_avg().mul_(options.rho()).addcmul_(gradient, gradient, 1 - options.rho());
    const auto std = state.square_avg().add(options.eps()).sqrt_();
    const auto delta = state.acc_delta().add(options.eps()).sqrt_().div_(std).mul_(gradient);
    state.acc_delta().mul_(options.rho()).addcmul_(delta, delta, 1 - options.rho());
    parameter.add_(delta, -options.lr());
  }
};

}  // namespace fsdp::test
