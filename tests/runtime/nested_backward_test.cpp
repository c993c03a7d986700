// Backwards inside backwards, more of them than LibTorch runs on one thread.

#include "support/small_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

constexpr int kLevels = 70;  // LibTorch runs what is nested deeper than 60 on another thread

/// Runs a backward in whose first hook the next one runs, until there were `kLevels`.
void run_nested(torch::nn::LinearImpl& linear, const Tensor& x, int level = 1) {
  const at::AutoGradMode recorded(true);  // off in a hook
  const auto y = torch::linear(x, linear.weight, linear.bias);
  if (level < kLevels) y.register_hook([&, level](const Tensor&) { run_nested(linear, x, level + 1); });
  y.sum().backward();
}

TEST(NestedBackwards, DeeperThanLibTorchRunsOnOneThreadAreOneBackward) {
  for (int world : worlds_up_to(2)) {
    auto oracle = build_alike([] { return torch::nn::Linear(3, 4); });
    run_nested(*oracle, torch::ones({2, 3}));
    run_thread_ranks(world, [&](int) {
      auto linear = build_alike([] { return torch::nn::Linear(3, 4); });
      const auto group = fully_shard(*linear);
      in_scope(group, [&] { run_nested(*linear, torch::ones({2, 3})); });
      for (size_t i : {0, 1})
        EXPECT_LT(relative_difference(oracle->parameters()[i].grad(), full_grad(linear->parameters()[i])), 1e-6) << i;
    });
  }
}

}  // namespace
}  // namespace fsdp::test
