// Tests of parts of forward that process their input piece by piece.

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/counted_memory.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

torch::nn::Sequential feed_forward() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(8, 256), torch::nn::GELU(), torch::nn::Linear(256, 8));
}

TEST(Tiled, GivesTheValuesAndTheGradientsOfTheWholeCallForAnyNumberOfParts) {
  auto net = feed_forward();
  net->to(torch::kDouble);
  const auto x = torch::randn({2, 7, 8}, torch::kDouble).requires_grad_();
  const auto grads_of = [&](const at::Tensor& y) {
    auto inputs = net->parameters();
    inputs.push_back(x);
    return torch::autograd::grad({y.pow(2).sum()}, inputs);
  };
  const auto y = net->forward(x);
  const auto expected = grads_of(y);
  for (const int64_t parts : {1, 2, 3, 7, 9}) {
    const auto tiles = tiled(net, x, 1, parts);
    EXPECT_TRUE(at::allclose(tiles, y, 1e-12, 1e-12)) << parts;
    const auto found = grads_of(tiles);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-10, 1e-12)) << parts;
  }
}

TEST(Tiled, HoldsTheHiddenValuesOfOnePart) {
  auto net = feed_forward();
  const auto x = torch::randn({1, 512, 8}).requires_grad_();
  const CountedMemory memory;
  tiled(net, x, 1, 8).sum().backward();
  EXPECT_EQ(memory.counts->largest, 512 / 8 * 256 * static_cast<int64_t>(sizeof(float)));
}

TEST(Tiled, TrainsAShardedModel) {
  auto plain = feed_forward();
  const auto x = torch::ones({2, 6, 8}).cumsum(1) * 0.1;
  plain->forward(x).sum().div(2).backward();
  const auto expected = plain->named_parameters();
  run_thread_ranks(2, [&](int rank) {
    torch::nn::Sequential net(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone()));
    auto model = fully_shard(net);
    tiled(model, x[rank], 0, 3).sum().backward();
    for (const auto& parameter : net->named_parameters())
      EXPECT_TRUE(at::allclose(full_tensor(parameter.value().grad()), expected[parameter.key()].grad(), 1e-4, 1e-5))
          << parameter.key();
  });
}

}  // namespace
}  // namespace fsdp::test
