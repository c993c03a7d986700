// Tests of param groups whose rows are sharded over one axis and replicated over another one.

#include <sstream>

#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

namespace nn = torch::nn;
using testing::HasSubstr;
using torch::Tensor;

TEST(BothAxes, GiveTheSameBitsOverSharedMemoryAndGloo) {
  auto training = small_net_training();
  training.shard = [](SmallNetImpl& net) { return shard_blocks_over(placement_over({2, 2}), net); };
  training.steps = 2;
  training.dtype = torch::kFloat;
  expect_same_bits(train_on_thread_ranks(training, 4, {.backend = "gloo"}),
                   train_on_thread_ranks(training, 4, {.backend = "shm"}));
}

TEST(BothAxes, SumInTheOrderOfShardsThenOfReplicasAndMultiplyOnce) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 2}, Axes{3, 1}, Axes{1, 3}}) {
    SCOPED_TRACE(text_of(axes));
    Tensor expected;
    for (int replica = 0; replica < axes.replicas; ++replica) {
      auto sum = gradient_of(replica * axes.shards);
      for (int shard = 1; shard < axes.shards; ++shard) sum = sum + gradient_of(replica * axes.shards + shard);
      expected = replica == 0 ? sum : expected + sum;
    }
    run_thread_ranks(axes.ranks(), [&](int rank) {
      for (const double factor : {0.0, 3.0}) {
        OneWeight net;
        const auto group = shard_over(placement_over(axes), module_tree(net), {});
        if (factor != 0) group.set_gradient_divide_factor(factor);
        backward_of(group, net, gradient_of(rank));
        const double divisor = factor != 0 ? factor : axes.ranks();
        EXPECT_TRUE(torch::equal(full_grad(net.weight), expected * torch::scalar_tensor(1 / divisor, torch::kDouble)));
      }
    });
  }
}

// Only the last rank uses `first`, and only in the first backward. Only rank 1 uses `second`, and only in the second
// one. Only the last replica uses `branch`.
struct Branches : nn::Module {
  Tensor everywhere = register_parameter("everywhere", torch::ones({5, 2}, torch::kDouble)),
         first = register_parameter("first", torch::arange(6, torch::kDouble).view({3, 2})),
         second = register_parameter("second", torch::arange(3, torch::kDouble)),
         scalar = register_parameter("scalar", torch::tensor(2.0, torch::kDouble)),
         never = register_parameter("never", torch::ones({3}, torch::kDouble));
  nn::Linear branch = register_module("branch", nn::Linear(nn::LinearOptions(2, 3).bias(false))),
             unused = register_module("unused", nn::Linear(2, 3));
};

// Expects that the gradients of two backwards add up, whether each one is reduced over both axes or the first one is
// kept within the replica until the second.
void expect_gradients_everywhere(Axes axes, bool keeps, int rank) {
  const auto model = build_alike([] { return std::make_shared<Branches>(); });
  auto& net = *model;
  net.to(torch::kDouble);
  const auto placement = placement_over(axes);
  for (auto* part : {&net.branch, &net.unused})
    shard_over(placement, module_tree(**part), {}).set_reduce_scatter_unused_params(true);
  const auto group = shard_over(placement, module_tree(net), {});
  for (int step = 1; step <= 2; ++step) {
    group.set_requires_all_reduce(step == 2 || !keeps);
    backward(group, [&] {
      auto loss = net.everywhere.sum() + net.scalar.square();
      if (rank == axes.ranks() - 1 && step == 1) loss = loss + net.first.square().sum();
      if (rank == 1 && step == 2) loss = loss + net.second.square().sum();
      if (rank / axes.shards == axes.replicas - 1)
        loss = loss + net.branch->forward(torch::ones({1, 2}, torch::kDouble)).sum();
      return loss;
    });
    if (step == 1 && keeps) continue;
    // The tolerance is small, because uninitialised memory often reads as a number near zero.
    const auto expect = [](const Tensor& expected, const Tensor& parameter) {
      expect_close(expected, full_grad(parameter), 1e-12);
    };
    const double share = 1.0 / axes.ranks();
    expect(torch::full({5, 2}, 1.0 * step, torch::kDouble), net.everywhere);
    expect(torch::tensor(4.0 * step, torch::kDouble), net.scalar);
    expect(torch::arange(6, torch::kDouble).view({3, 2}) * 2 * share, net.first);
    if (step == 2) expect(torch::arange(3, torch::kDouble) * 2 * share, net.second);
    expect(torch::full({3, 2}, share * step * axes.shards, torch::kDouble), net.branch->weight);
    EXPECT_FALSE(net.never.grad().defined());
    EXPECT_FALSE(net.unused->bias.grad().defined());
  }
}

TEST(BothAxes, GiveAGradientEverywhereToWhatOneReplicaAloneUsed) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 3}})
    for (const bool keeps : {false, true}) {
      SCOPED_TRACE(text_of(axes) + (keeps ? ", kept within the replica" : ""));
      run_thread_ranks(axes.ranks(), [&](int rank) { expect_gradients_everywhere(axes, keeps, rank); });
    }
}

TEST(BothAxes, TakeTheValuesOfRankZeroOfAllRanksAndAreSeenInWhatIsPrinted) {
  run_thread_ranks(4, [](int rank) {
    OneWeight net;
    {
      const torch::NoGradGuard no_grad;
      net.weight.fill_(rank + 1.0);
    }
    const auto group = shard_over(placement_over({2, 2}), module_tree(net), {.sync_module_states = true});
    EXPECT_TRUE(torch::equal(full_tensor(net.weight), torch::ones({7, 3})));
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.world_size(), 4);
    std::ostringstream text;
    text << group;
    EXPECT_THAT(text.str(), HasSubstr(c10::str("rank ", rank, " of 4 (shard ", rank % 2, " of 2, replica ", rank / 2,
                                               " of 2), 1 group")));
    EXPECT_THAT(message_of<UsageError>([&] { net.weight.norm(); }), HasSubstr(c10::str("[fsdp rank ", rank, "/4]")));
  });
}

}  // namespace
}  // namespace fsdp::test::strategies
