// Sharded training against the unsharded oracle: the ways to group and to reshard.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  nn::LayerNorm norm;
  nn::Linear in, out;
  explicit BlockImpl(int64_t dim) : norm(nn::LayerNormOptions({dim})), in(dim, 3 * dim + 1), out(3 * dim + 1, dim) {
    register_module("norm", norm);
    register_module("in", in);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + out->forward(torch::gelu(in->forward(norm->forward(x)))); }
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  nn::Linear first;
  nn::ModuleList blocks;
  nn::Linear head;
  NetImpl(int64_t dim, int64_t depth) : first(5, dim), head(nn::LinearOptions(dim, 3).bias(false)) {
    register_module("first", first);
    register_module("blocks", blocks);
    for (int64_t i = 0; i < depth; ++i) blocks->push_back(Block(dim));
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(first->forward(x));
    for (auto& block : *blocks) h = block->as<Block>()->forward(h);
    return head->forward(h);
  }
};
TORCH_MODULE(Net);

Training<NetImpl> net_training(std::optional<Reshard> reshard = std::nullopt) {
  Training<NetImpl> training;
  training.build = [] { return std::make_shared<NetImpl>(11, 3); };
  training.shard = [reshard](NetImpl& net) {
    FullyShardOptions options;
    options.reshard_after_forward = reshard;
    for (auto& block : *net.blocks) fully_shard(*block, options);
    return fully_shard(static_cast<nn::Module&>(net), options);
  };
  training.loss = [](NetImpl& net, const Batch& batch) {
    return torch::mse_loss(net.forward(samples(batch, {5})), samples(batch, {3}));
  };
  training.steps = 10;
  return training;
}

TEST(Training, BlocksAndRootEqualTheUnshardedRun) {
  for (int world : worlds_up_to(8)) expect_training_equals_unsharded(net_training(), world);
}

TEST(Training, ReshardAlwaysEqualsTheUnshardedRun) {
  for (int world : worlds_up_to(3)) expect_training_equals_unsharded(net_training(Reshard::always()), world);
}

TEST(Training, ReshardNeverEqualsTheUnshardedRun) {
  for (int world : worlds_up_to(3)) expect_training_equals_unsharded(net_training(Reshard::never()), world);
}

TEST(Training, OneGroupEqualsTheUnshardedRun) {
  auto training = net_training();
  training.shard = [](NetImpl& net) { return fully_shard(static_cast<nn::Module&>(net)); };
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(training, world);
}

TEST(Training, Float32StaysWithinItsRounding) {
  auto training = net_training();
  training.dtype = torch::kFloat;
  training.tolerance = 5e-6;
  training.loss = [](NetImpl& net, const Batch& batch) {
    return torch::mse_loss(net.forward(samples(batch, {5}, torch::kFloat)), samples(batch, {3}, torch::kFloat));
  };
  // SGD: Adam's first steps divide by the root of tiny numbers and magnify roundings.
  training.optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(training, world);
}

TEST(Training, TwoRunsGiveTheSameBits) {
  auto training = net_training();
  training.dtype = torch::kFloat;
  training.loss = [](NetImpl& net, const Batch& batch) {
    return torch::mse_loss(net.forward(samples(batch, {5}, torch::kFloat)), samples(batch, {3}, torch::kFloat));
  };
  std::vector<Outcome> runs;
  for (int run = 0; run < 2; ++run) {
    std::vector<std::shared_ptr<NetImpl>> models;
    for (int r = 0; r < 3; ++r) models.push_back(build_model(training));
    Outcome outcome;
    run_thread_ranks(3, [&](int r) {
      auto found = train_sharded(training, *models[static_cast<size_t>(r)]);
      if (r == 0) outcome = found;
    });
    runs.push_back(outcome);
  }
  EXPECT_EQ(runs[0].losses, runs[1].losses);
  for (size_t i = 0; i < runs[0].parameters.size(); ++i)
    EXPECT_TRUE(torch::equal(runs[0].parameters[i], runs[1].parameters[i])) << i;
}

}  // namespace
}  // namespace fsdp::test
