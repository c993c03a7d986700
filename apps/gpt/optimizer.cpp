#include "optimizer.h"

#include <memory>

namespace gpt {

using fsdp::optim::AdamW;
using torch::optim::AdamWOptions;

AdamW make_optimizer(const std::vector<at::Tensor>& parameters, const Arguments& arguments) {
  std::vector<at::Tensor> matrices, others;
  for (const auto& parameter : parameters) (parameter.dim() > 1 ? matrices : others).push_back(parameter);
  const auto options = [&](double weight_decay) {
    return std::make_unique<AdamWOptions>(AdamWOptions(arguments.lr).betas({0.9, 0.99}).weight_decay(weight_decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), options(arguments.weight_decay));
  groups.emplace_back(std::move(others), options(0.0));
  return AdamW(groups, AdamWOptions(arguments.lr));
}

void set_learning_rate(AdamW& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
}

}  // namespace gpt
