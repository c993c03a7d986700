#pragma once
/// \file
/// A model with layers of different precision, and a training loop that writes out all casts of
/// MixedPrecisionPolicy.

#include "support/oracle.h"

namespace fsdp::test {

/// The net casts nothing itself, unless `casts` is set. Then each layer casts its input to the dtype of its parameters.
struct MixedNetImpl : torch::nn::Module {
  torch::nn::Embedding table;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  bool casts = false;

  MixedNetImpl() : table(17, 12), norm(torch::nn::LayerNormOptions({12})), head(12, 5) {
    register_module("table", table);
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(12, 12));
    register_module("norm", norm);
    register_module("head", head);
    head->bias.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const auto input = [this](const torch::Tensor& x, const torch::Tensor& weight) {
      return casts ? x.to(weight.scalar_type()) : x;
    };
    auto x = table->forward(ids).mean(1);
    for (const auto& block : *blocks) {
      auto& linear = *block->as<torch::nn::Linear>();
      x = x + torch::tanh(linear.forward(input(x, linear.weight)));
    }
    x = norm->forward(input(x, norm->weight));
    return head->forward(input(x, head->weight));
  }
};
TORCH_MODULE(MixedNet);

inline torch::Tensor mixed_net_ids(const Batch& batch) {
  const auto numbers = torch::arange(batch.first, batch.first + batch.count, torch::kLong).reshape({-1, 1});
  return (numbers * 7 + torch::arange(4, torch::kLong) * 3 + batch.step * 5).remainder(17);
}

inline torch::Tensor mixed_net_loss(MixedNetImpl& net, const Batch& batch) {
  return torch::mse_loss(net.forward(mixed_net_ids(batch)).to(torch::kFloat), samples(batch, {5}, torch::kFloat));
}

/// Returns a policy that keeps norms in full precision.
inline MixedPrecisionPolicy keeping_norms(at::ScalarType param, std::optional<at::ScalarType> reduce = {}) {
  MixedPrecisionPolicy policy;
  policy.param_dtype = param;
  policy.reduce_dtype = reduce;
  policy.keeps_precision = [](const torch::nn::Module& module, const std::string&) {
    return module.as<torch::nn::LayerNorm>() != nullptr;
  };
  return policy;
}

inline Group shard_mixed_net(MixedNetImpl& net, const FullyShardOptions& options) {
  for (const auto& block : *net.blocks) fully_shard(*block, options);
  return fully_shard(static_cast<torch::nn::Module&>(net), options);
}

/// Averages the ranks' gradients as reductions do: it adds them one after the other in the dtype of the reduction,
/// first within each host if there are several hosts.
inline torch::Tensor mean_of(const std::vector<torch::Tensor>& gradients, const std::vector<int>& hosts) {
  const auto world = static_cast<double>(gradients.size());
  double before = 1;  // factor applied before the sum, for fp16
  if (gradients[0].scalar_type() == torch::kHalf)
    while (1 / (before * before) < world) before /= 2;
  auto sum = add_in_order<torch::Tensor>(
      hosts, [&](int rank) { return gradients[static_cast<size_t>(rank)].mul(before); },
      [](torch::Tensor a, const torch::Tensor& b) { return a.add_(b); });
  return sum.mul_(torch::scalar_tensor(1 / (world * before), torch::kDouble));
}

/// Trains the oracle: fp32 master parameters, and a low-precision model that copies their values in each step. It
/// computes the micro-batches of all ranks one after the other. `hosts` holds each rank's host, which decides the order
/// of sums.
inline Outcome train_with_casts(const MixedPrecisionPolicy& policy, int steps, const std::vector<int>& hosts,
                                int micro_batches = 1) {
  const auto world = static_cast<int>(hosts.size());
  torch::manual_seed(7);
  const auto masters = std::make_shared<MixedNetImpl>();
  const auto low = std::make_shared<MixedNetImpl>();
  low->casts = true;
  std::vector<at::ScalarType> reduced;
  for (auto& parameter : low->parameters()) {
    const torch::NoGradGuard no_grad;
    const bool is_kept = parameter.is_same(low->norm->weight) || parameter.is_same(low->norm->bias);
    parameter.set_data(parameter.to(is_kept ? torch::kFloat : *policy.param_dtype));
    reduced.push_back(is_kept ? torch::kFloat : policy.reduce_dtype.value_or(*policy.param_dtype));
  }
  torch::optim::SGD optimizer(masters->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    const auto to = low->parameters(), from = masters->parameters();
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
    std::vector<std::vector<torch::Tensor>> gradients(to.size());
    std::vector<torch::Tensor> losses;
    for (int rank = 0; rank < world; ++rank) {
      std::vector<torch::Tensor> sums(to.size());
      for (int micro = 0; micro < micro_batches; ++micro) {
        low->zero_grad();
        const auto loss = mixed_net_loss(*low, {step * micro_batches + micro, rank * 2, 2});
        loss.backward();
        if (micro == micro_batches - 1) losses.push_back(loss.detach());
        for (size_t i = 0; i < to.size(); ++i)
          if (const auto& gradient = to[i].grad(); gradient.defined())
            sums[i] = sums[i].defined() ? sums[i].to(torch::kFloat) + gradient : gradient.clone();
      }
      for (size_t i = 0; i < to.size(); ++i)
        if (sums[i].defined()) gradients[i].push_back(sums[i].to(reduced[i]));
    }
    for (size_t i = 0; i < to.size(); ++i)
      if (!gradients[i].empty()) from[i].mutable_grad() = mean_of(gradients[i], hosts).to(torch::kFloat);
    optimizer.step();
    const auto sum = add_in_order<torch::Tensor>(
        hosts, [&](int rank) { return losses[static_cast<size_t>(rank)]; },
        [](const torch::Tensor& a, const torch::Tensor& b) { return a + b; });
    outcome.losses.push_back(sum.item<double>() / world);
  }
  for (const auto& parameter : masters->parameters()) outcome.parameters.push_back(parameter.detach().clone());
  return outcome;
}

}  // namespace fsdp::test
