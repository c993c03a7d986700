#pragma once
/// \file
/// The model of the runtime's tests: blocks between a first and a last layer. No layer divides evenly between
/// ranks.

#include "support/oracle.h"

namespace fsdp::test {

struct SmallBlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm;
  torch::nn::Linear in, out;
  explicit SmallBlockImpl(int64_t dim)
      : norm(torch::nn::LayerNormOptions({dim})), in(dim, 3 * dim + 1), out(3 * dim + 1, dim) {
    register_module("norm", norm);
    register_module("inner", in);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + out->forward(torch::gelu(in->forward(norm->forward(x)))); }
};
TORCH_MODULE(SmallBlock);

struct SmallNetImpl : torch::nn::Module {
  torch::nn::Linear first;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
  explicit SmallNetImpl(int64_t dim = 11, int64_t depth = 3)
      : first(5, dim), head(torch::nn::LinearOptions(dim, 3).bias(false)) {
    register_module("first", first);
    register_module("blocks", blocks);
    for (int64_t i = 0; i < depth; ++i) blocks->push_back(SmallBlock(dim));
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(first->forward(x));
    for (auto& block : *blocks) h = block->as<SmallBlock>()->forward(h);
    return head->forward(h);
  }
};
TORCH_MODULE(SmallNet);

inline std::shared_ptr<SmallNetImpl> alike_small_net(c10::ScalarType dtype = torch::kFloat, int64_t dim = 11,
                                                     int64_t depth = 3) {
  return build_alike([&] {
    auto net = std::make_shared<SmallNetImpl>(dim, depth);
    net->to(dtype);
    return net;
  });
}

/// Makes each block a param group; the other parameters belong to the root's group.
inline Group shard_blocks(SmallNetImpl& net, const FullyShardOptions& options = {}) {
  for (auto& block : *net.blocks) fully_shard(*block, options);
  return fully_shard(static_cast<torch::nn::Module&>(net), options);
}

inline torch::Tensor small_net_loss(SmallNetImpl& net, const Batch& batch) {
  auto dtype = net.head->weight.scalar_type();
  return torch::mse_loss(net.forward(samples(batch, {5}, dtype)), samples(batch, {3}, dtype));
}

/// Returns the loss of this rank's two samples of a step, computed in a forward scope.
inline torch::Tensor own_loss(SmallNetImpl& net, const Group& group, int step) {
  const ForwardScope scope(group);
  return small_net_loss(net, {step, rank() * 2, 2});
}

inline Training<SmallNetImpl> small_net_training(const FullyShardOptions& options = {}) {
  Training<SmallNetImpl> training;
  training.build = [] { return std::make_shared<SmallNetImpl>(); };
  training.shard = [options](SmallNetImpl& net) { return shard_blocks(net, options); };
  training.loss = small_net_loss;
  return training;
}

}  // namespace fsdp::test
