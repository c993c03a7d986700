// Groups whose rows lie on the ranks of one axis and are replicated over those of another one.

#include <sstream>

#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

namespace nn = torch::nn;
using testing::HasSubstr;
using testing::SizeIs;
using torch::Tensor;

Training<SmallNetImpl> training_over(Axes axes, const FullyShardOptions& options = {}) {
  auto training = small_net_training(options);
  training.shard = [=](SmallNetImpl& net) { return shard_blocks_over(placement_over(axes), net, options); };
  training.steps = 2;
  return training;
}

TEST(BothAxes, TrainAlikeWhereWholeParametersStay) {
  expect_training_equals_unsharded(training_over({2, 2}, {.reshard_after_forward = Reshard::never()}), 4);
}

TEST(BothAxes, GiveTheSameBitsOverSharedMemoryAndGloo) {
  auto training = training_over({2, 2});
  training.dtype = torch::kFloat;
  const auto expected = train_on_thread_ranks(training, 4, {.backend = "gloo"});
  expect_same_bits(expected, train_on_thread_ranks(training, 4, {.backend = "gloo"}));
  expect_same_bits(expected, train_on_thread_ranks(training, 4, {.backend = "shm"}));
}

TEST(BothAxes, SumInTheOrderOfShardsThenOfReplicasAndMultiplyOnce) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 2}, Axes{2, 1}, Axes{3, 1}, Axes{1, 3}}) {
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

// Of these, one parameter is used by one rank of the last replica alone, and a branch by that replica's ranks.
struct Branches : nn::Module {
  Tensor everywhere = register_parameter("everywhere", torch::ones({5, 2}, torch::kDouble)),
         once = register_parameter("once", torch::arange(6, torch::kDouble).view({3, 2})),
         never = register_parameter("never", torch::ones({3}, torch::kDouble));
  nn::Linear branch = register_module("branch", nn::Linear(nn::LinearOptions(2, 3).bias(false))),
             unused = register_module("unused", nn::Linear(2, 3));
};

TEST(BothAxes, GiveAGradientEverywhereToWhatOneReplicaAloneUsed) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 2}, Axes{1, 3}}) {
    SCOPED_TRACE(text_of(axes));
    run_thread_ranks(axes.ranks(), [&](int rank) {
      const auto model = build_alike([] { return std::make_shared<Branches>(); });
      auto& net = *model;
      net.to(torch::kDouble);
      const auto placement = placement_over(axes);
      for (auto* part : {&net.branch, &net.unused})
        shard_over(placement, module_tree(**part), {}).set_reduce_scatter_unused_params(true);
      const auto group = shard_over(placement, module_tree(net), {});
      for (int step = 1; step <= 2; ++step) {  // the second adds to what is there
        backward(group, [&] {
          auto loss = net.everywhere.sum();
          if (rank == axes.ranks() - 1) loss = loss + net.once.square().sum();
          if (rank / axes.shards == axes.replicas - 1)
            loss = loss + net.branch->forward(torch::ones({1, 2}, torch::kDouble)).sum();
          return loss;
        });
        const double share = static_cast<double>(step) / axes.ranks();
        // Closely: memory that was not initialised often reads as a number near zero.
        expect_close(torch::full({5, 2}, 1.0 * step, torch::kDouble), full_grad(net.everywhere), 1e-12);
        expect_close(torch::arange(6, torch::kDouble).view({3, 2}) * 2 * share, full_grad(net.once), 1e-12);
        expect_close(torch::full({3, 2}, share * axes.shards, torch::kDouble), full_grad(net.branch->weight), 1e-12);
        EXPECT_FALSE(net.never.grad().defined());
        EXPECT_FALSE(net.unused->bias.grad().defined());
      }
    });
  }
}

TEST(BothAxes, ClipByTheNormOfAllRowsOnce) {
  const auto oracle = make_small_net();
  small_net_loss(*oracle, {0, 0, 8}).backward();
  const double norm = nn::utils::clip_grad_norm_(oracle->parameters(), 1e-3);
  run_thread_ranks(4, [&](int) {
    const auto net = make_small_net();
    const auto group = shard_blocks_over(placement_over({2, 2}), *net);
    loss_of_rank(group, *net, 0).backward();
    EXPECT_NEAR(clip_grad_norm_(group, 1e-3), norm, 1e-5 * norm);
    expect_gradients_equal(*oracle, *net, 1e-4);
  });
}

TEST(BothAxes, TakeTheValuesOfRankZeroOfAllRanks) {
  run_thread_ranks(4, [](int rank) {
    OneWeight net;
    torch::NoGradGuard no_grad;
    net.weight.fill_(rank + 1.0);
    shard_over(placement_over({2, 2}), module_tree(net), {.sync_module_states = true});
    EXPECT_TRUE(torch::equal(full_tensor(net.weight), torch::ones({7, 3})));
  });
}

TEST(BothAxes, AreSeenInWhatIsPrintedAndInErrors) {
  run_thread_ranks(4, [](int rank) {
    OneWeight net;
    const auto group = shard_over(placement_over({2, 2}), module_tree(net), {});
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.world_size(), 4);
    std::ostringstream text;
    text << group;
    EXPECT_THAT(text.str(), HasSubstr(c10::str("rank ", rank, " of 4 (shard ", rank % 2, " of 2, replica ", rank / 2,
                                               " of 2), 1 group")));
    EXPECT_THAT(message_of<UsageError>([&] { net.weight.norm(); }), HasSubstr(c10::str("[fsdp rank ", rank, "/4]")));
  });
}

TEST(BothAxes, ReduceEachGroupOverTheShardsThenItsRowsOverTheReplicas) {
  run_thread_ranks(4, [](int rank) {
    const RecordedAxes axes({2, 2});
    OneWeight net;
    const auto group = shard_over(axes.placement, module_tree(net), {});
    axes.log->clear();
    backward_of(group, net, gradient_of(rank));
    const auto bytes = static_cast<uint64_t>(local_rows(net.weight).count) * 3 * sizeof(float);
    const auto reductions = reductions_in(*axes.log);
    ASSERT_THAT(reductions, SizeIs(2));
    EXPECT_THAT(reductions[0].operation, HasSubstr("reduce_scatter"));
    EXPECT_THAT(reductions[1].operation, HasSubstr("all_reduce"));
    EXPECT_GE(reductions[1].bytes, bytes);  // with padding
    EXPECT_LT(reductions[1].bytes, reductions[0].bytes);
    EXPECT_EQ(reductions[0].subject, reductions[1].subject);
  });
}

TEST(AnAxisOfOneRank, CommunicatesNothing) {
  run_thread_ranks(2, [](int rank) {
    EXPECT_THAT(placement_over({2, 1}).replicate(), testing::IsEmpty());
    EXPECT_EQ(placement_over({2, 1}).divisor(), 2);
    const auto all = default_process_group(), alone = all->split({{0}, {1}}, "alone");
    const auto log = std::make_shared<OperationLog>();
    const runtime::Placement placement(all, alone, {test::recorded(*all, log)});
    EXPECT_EQ(placement.replicas(), 2);
    EXPECT_EQ(placement.divisor(), 2);
    OneWeight net;
    const auto group = shard_over(placement, module_tree(net), {});
    log->clear();
    backward_of(group, net, gradient_of(rank));
    EXPECT_THAT(log->entries(), SizeIs(1));  // the sum over the replicas
    EXPECT_EQ(group.stats().gathers, 0);
  });
}

}  // namespace
}  // namespace fsdp::test::strategies
