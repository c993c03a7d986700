#include "optimizer.h"

#include "frame/optimizer_flags.h"

namespace gpt {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        const Arguments& arguments) {
  std::vector<at::Tensor> matrices, others;
  for (const auto& parameter : parameters) (parameter.dim() > 1 ? matrices : others).push_back(parameter);
  return frame::make_optimizer(arguments.optimizer, arguments.lr,
                               {{std::move(matrices), arguments.weight_decay}, {std::move(others), 0.0}}, {0.9, 0.99});
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
}

}  // namespace gpt
