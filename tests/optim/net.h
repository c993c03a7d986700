#pragma once
/// \file
/// The model of the optimizers' tests. No size divides evenly, and one part has a gradient in some steps only.

#include <ATen/record_function.h>

#include "support/oracle.h"

namespace fsdp::test {

struct OptimNet : torch::nn::Module {
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(17, 5));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
  torch::nn::Linear in = register_module("in", torch::nn::Linear(5, 9)),
                    sometimes = register_module("sometimes", torch::nn::Linear(9, 9)),
                    never = register_module("never", torch::nn::Linear(2, 2));
  torch::nn::Conv1d conv = register_module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 2, 3)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(9, 3));
  torch::Tensor scale = register_parameter("scale", torch::tensor(1.5)),
                frozen = register_parameter("frozen", torch::full({3}, 0.5), /*requires_grad=*/false);

  torch::Tensor forward(const torch::Tensor& ids, bool uses_sometimes) {
    auto h = torch::tanh(in->forward(norm->forward(embedding->forward(ids))));
    if (uses_sometimes) h = h + sometimes->forward(h);
    auto bumps = conv->forward(h.unsqueeze(1)).mean({1, 2}).unsqueeze(1);
    return (out->forward(h) + bumps) * scale + frozen;
  }
  torch::Tensor loss(const Batch& batch) {
    return distance_from_targets(forward(labels(batch, {}, 17), batch.step % 2 == 1), batch);
  }
};

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// Returns three parameter groups with their own options: the matrices, the scale, and the other parameters.
template <class Options>
ParamGroups three_groups(OptimNet& net, const Options& matrices, const Options& vectors, const Options& scale) {
  std::vector<torch::Tensor> of_matrices, of_vectors;
  for (const auto& parameter : net.parameters())
    if (!parameter.is_same(net.scale)) (parameter.dim() > 1 ? of_matrices : of_vectors).push_back(parameter);
  ParamGroups groups;
  groups.emplace_back(of_matrices, std::make_unique<Options>(matrices));
  groups.emplace_back(of_vectors, std::make_unique<Options>(vectors));
  groups.emplace_back(std::vector<torch::Tensor>{net.scale}, std::make_unique<Options>(scale));
  return groups;
}

inline void backward(OptimNet& net, const Role& role, int step) {
  role.whole(net, [&] { return net.loss(role.batch(step)); }).backward();
}

/// Shards the net as two param groups, `in` and the root.
inline void shard_in_two(OptimNet& net, const FullyShardOptions& options = {}) {
  fully_shard(*net.in, options);
  fully_shard(static_cast<torch::nn::Module&>(net), options);
}

inline std::shared_ptr<OptimNet> optim_net(c10::ScalarType dtype = torch::kDouble) {
  const auto net = build_alike([] { return std::make_shared<OptimNet>(); });
  net->to(dtype);
  return net;
}

inline void copy_rows(const torch::nn::Module& from, const torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < to.parameters().size(); ++i) to.parameters()[i].copy_(from.parameters()[i]);
}

/// Returns the number of calls in a step of operators, or passes of optimizers, whose names begin with `beginning`.
inline int calls_of_a_step(torch::optim::Optimizer& optimizer, const std::string& beginning) {
  static thread_local std::string counted;
  static thread_local int count;
  counted = beginning;
  count = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        count += std::string_view(call.name()).starts_with(counted);
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  optimizer.step();
  at::removeCallback(handle);
  return count;
}

}  // namespace fsdp::test
