#pragma once
/// \file
/// A model whose parameters have too few indices in dim 0 to be split there: the layout splits them by shorter
/// rows.

#include "support/oracle.h"

namespace fsdp::test {

/// A module with one parameter, so that the parameter can have a param group of its own.
struct HeldParameterImpl : torch::nn::Module {
  torch::Tensor value;
  explicit HeldParameterImpl(const std::vector<int64_t>& sizes)
      : value(register_parameter("value", torch::randn(sizes) / 10)) {}
  torch::Tensor forward() const { return value; }
};
TORCH_MODULE(HeldParameter);

/// The net has a position embedding with one row, five stacked experts, a Linear with one output, an ordinary Linear
/// and a scalar. On two and on three ranks, a rank has rows of several experts, and only some of the rows of an expert.
struct FewRowsNetImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 36, kPositions = 100;
  torch::nn::Linear first{5, 460};
  HeldParameter position{std::vector<int64_t>{1, 30, 600}}, experts{std::vector<int64_t>{5, kWidth, 460}};
  torch::nn::Linear head{5 * kWidth * kPositions, 1};
  torch::Tensor scalar = register_parameter("scalar", torch::tensor(0.5));

  FewRowsNetImpl() {
    register_module("first", first);
    register_module("position", position);
    register_module("experts", experts);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::tanh(first(x));
    const auto positions = position().mean(1).view({6, kPositions}).mean(0);
    const auto of_experts = torch::tanh(torch::matmul(experts(), hidden.t())).flatten(0, 1).t();  // [batch, 5 * kWidth]
    return head((of_experts.unsqueeze(2) * positions).flatten(1)) * scalar;
  }
};
TORCH_MODULE(FewRowsNet);

/// Returns a loss whose gradients are large relative to the parameters, so that clipping by their norm has an effect.
inline torch::Tensor few_rows_loss(FewRowsNetImpl& net, const Batch& batch) {
  const auto dtype = net.scalar.scalar_type();
  return 1e4 * torch::mse_loss(net.forward(samples(batch, {5}, dtype)), samples(batch, {1}, dtype));
}

inline Training<FewRowsNetImpl> few_rows_training(const FullyShardOptions& options = {}) {
  Training<FewRowsNetImpl> training;
  training.build = [] { return std::make_shared<FewRowsNetImpl>(); };
  training.shard = [options](FewRowsNetImpl& net) {
    shard_children_then_root(net, options);
    return group_of(net);
  };
  training.loss = few_rows_loss;
  training.steps = 2;
  return training;
}

}  // namespace fsdp::test
