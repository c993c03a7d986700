// Groups whose rows lie on the ranks of one axis and are replicated over those of another one.

#include <gmock/gmock.h>

#include <sstream>
#include <stdexcept>

#include "support/axes.h"
#include "support/recorded_ranks.h"
#include "support/small_net.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using torch::Tensor;

// Each block one group, the rest the root's.
Group shard_blocks_over(const runtime::Placement& placement, SmallNetImpl& net, const FullyShardOptions& options = {}) {
  for (auto& block : *net.blocks) shard_over(placement, module_tree(*block), options);
  return shard_over(placement, module_tree(net), options);
}

// Of this rank's two samples.
Tensor loss_of_rank(const Group& group, SmallNetImpl& net, int rank) {
  const ForwardScope scope(group);
  return small_net_loss(net, {0, rank * 2, 2});
}

Training<SmallNetImpl> training_over(Axes axes, const FullyShardOptions& options = {}) {
  auto training = small_net_training(options);
  training.shard = [=](SmallNetImpl& net) { return shard_blocks_over(placement_over(axes), net, options); };
  return training;
}

std::vector<Axes> shapes() { return {{2, 2}, {1, 2}, {2, 1}, {3, 1}, {1, 3}}; }

std::string text_of(Axes axes) { return c10::str(axes.shards, " x ", axes.replicas); }

TEST(BothAxes, TrainAsTheUnshardedModelOnTheJoinedBatch) {
  for (const auto axes : shapes()) {
    SCOPED_TRACE(text_of(axes));
    expect_training_equals_unsharded(training_over(axes), axes.ranks());
  }
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

struct OneWeight : nn::Module {
  Tensor weight = register_parameter("weight", torch::zeros({7, 3}));
};

// Over many orders of magnitude, so that the order of addition shows in the last bits.
Tensor gradient_of(int rank) {
  return (samples({0, rank, 1}, {7, 3}) * torch::pow(10.0, 4 * samples({1, rank, 1}, {7, 3})))
      .squeeze(0)
      .to(torch::kFloat);
}

TEST(BothAxes, SumInTheOrderOfShardsThenOfReplicasAndMultiplyOnce) {
  for (const auto axes : shapes()) {
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
        Tensor loss;
        {
          ForwardScope scope(group);
          loss = (net.weight * gradient_of(rank)).sum();
        }
        loss.backward();
        const double divisor = factor != 0 ? factor : axes.ranks();
        EXPECT_TRUE(torch::equal(full_grad(net.weight), expected * torch::scalar_tensor(1 / divisor, torch::kDouble)));
      }
    });
  }
}

// Of these, one parameter is used by one rank of the last replica alone, and the branch by that replica's ranks.
struct Branches : nn::Module {
  Tensor everywhere = register_parameter("everywhere", torch::ones({5, 2}, torch::kDouble)),
         once = register_parameter("once", torch::arange(6, torch::kDouble).view({3, 2})),
         never = register_parameter("never", torch::ones({3}, torch::kDouble));
  nn::Linear branch = register_module("branch", nn::Linear(nn::LinearOptions(2, 3).bias(false)));
};

TEST(BothAxes, GiveAGradientEverywhereToWhatOneReplicaAloneUsed) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 2}}) {
    SCOPED_TRACE(text_of(axes));
    run_thread_ranks(axes.ranks(), [&](int rank) {
      const auto model = build_alike([] { return std::make_shared<Branches>(); });
      auto& net = *model;
      net.to(torch::kDouble);
      const auto placement = placement_over(axes);
      const auto branch = shard_over(placement, module_tree(*net.branch), {});
      const auto group = shard_over(placement, module_tree(net), {});
      branch.set_reduce_scatter_unused_params(true);
      for (int step = 1; step <= 2; ++step) {  // the second adds to what is there
        Tensor loss;
        {
          ForwardScope scope(group);
          loss = net.everywhere.sum();
          if (rank == axes.ranks() - 1) loss = loss + net.once.square().sum();
          if (rank / axes.shards == 1) loss = loss + net.branch->forward(torch::ones({1, 2}, torch::kDouble)).sum();
        }
        loss.backward();
        const double share = static_cast<double>(step) / axes.ranks();
        EXPECT_TRUE(full_grad(net.everywhere).allclose(torch::full({5, 2}, 1.0 * step, torch::kDouble)));
        EXPECT_TRUE(full_grad(net.once).allclose(torch::arange(6, torch::kDouble).view({3, 2}) * 2 * share));
        EXPECT_TRUE(full_grad(net.branch->weight).allclose(torch::full({3, 2}, share * axes.shards, torch::kDouble)));
        EXPECT_FALSE(net.never.grad().defined());
      }
    });
  }
}

TEST(BothAxes, ClipByTheNormOfAllRowsOnce) {
  torch::manual_seed(7);
  SmallNet oracle;
  small_net_loss(*oracle, {0, 0, 8}).backward();
  const double norm = nn::utils::clip_grad_norm_(oracle->parameters(), 1e-3);
  run_thread_ranks(4, [&](int rank) {
    auto net = build_alike([] { return SmallNet(); });
    const auto group = shard_blocks_over(placement_over({2, 2}), *net);
    loss_of_rank(group, *net, rank).backward();
    EXPECT_NEAR(clip_grad_norm_(group, 1e-3), norm, 1e-5 * norm);
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_LT(relative_difference(oracle->parameters()[i].grad(), full_grad(net->parameters()[i])), 1e-4) << i;
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
    try {
      net.weight.norm();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr(c10::str("[fsdp rank ", rank, "/4]")));
    }
  });
}

TEST(BothAxes, ReduceEachGroupOverTheShardsThenItsRowsOverTheReplicas) {
  run_thread_ranks(4, [](int rank) {
    const auto plain = placement_over({2, 2});
    const auto log = std::make_shared<OperationLog>();
    const runtime::Placement placement(default_process_group(), recorded(plain.shard(), log),
                                       {recorded(*plain.replicate().front(), log)});
    OneWeight net;
    const auto group = shard_over(placement, module_tree(net), {});
    Tensor loss;
    {
      ForwardScope scope(group);
      loss = (net.weight * gradient_of(rank)).sum();
    }
    log->clear();
    loss.backward();
    const auto bytes = static_cast<uint64_t>(local_rows(net.weight).count) * 3 * sizeof(float);
    std::vector<OperationLog::Entry> reductions;
    for (const auto& entry : log->entries())
      if (entry.lane == "reductions" || entry.lane == "further steps") reductions.push_back(entry);
    ASSERT_THAT(reductions, SizeIs(2));
    EXPECT_THAT(reductions[0].operation, HasSubstr("reduce_scatter"));
    EXPECT_THAT(reductions[1].operation, HasSubstr("all_reduce"));
    EXPECT_GE(reductions[1].bytes, bytes);  // with padding
    EXPECT_LT(reductions[1].bytes, reductions[0].bytes);
    EXPECT_EQ(reductions[0].subject, reductions[1].subject);
  });
}

TEST(AnAxisOfOneRank, CommunicatesNothing) {
  run_thread_ranks(2, [](int) {
    EXPECT_THAT(placement_over({2, 1}).replicate(), testing::IsEmpty());
    EXPECT_EQ(placement_over({2, 1}).divisor(), 2);
    const auto all = default_process_group(), alone = all->split({{0}, {1}}, "alone");
    const auto log = std::make_shared<OperationLog>();
    const runtime::Placement placement(all, alone, {recorded(*all, log)});
    EXPECT_EQ(placement.replicas(), 2);
    EXPECT_EQ(placement.divisor(), 2);
    OneWeight net;
    const auto group = shard_over(placement, module_tree(net), {});
    log->clear();
    {
      ForwardScope scope(group);
      net.weight.sum().backward();
    }
    EXPECT_THAT(log->entries(), SizeIs(1));  // the sum over the replicas
    EXPECT_EQ(group.stats().gathers, 0);
  });
}

// Runs a step on 4 ranks, 2 x 2, of which `act` spoils one; the messages of those that end with an error of fsdp's.
std::vector<std::string> spoiled_step(const std::function<void(int rank, const Group& group)>& act) {
  std::vector<std::string> messages(4);
  try {
    run_thread_ranks(4, [&](int rank) {
      auto net = build_alike([] { return SmallNet(); });
      const auto group = shard_blocks_over(placement_over({2, 2}), *net);
      const auto loss = loss_of_rank(group, *net, rank);
      act(rank, group);
      try {
        loss.backward();
      } catch (const Error& error) {
        messages[static_cast<size_t>(rank)] = error.what_without_backtrace();
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const std::exception&) {
    // Of the rank that was the first.
  }
  return messages;
}

TEST(BothAxes, ReplicasThatReduceDifferentlyAreAMismatchInTheSecondStep) {
  const auto messages =
      spoiled_step([](int rank, const Group& group) { group.set_gradient_divide_factor(rank < 2 ? 2.0 : 3.0); });
  int mismatches = 0;
  for (const auto& message : messages) {
    EXPECT_THAT(message, HasSubstr("[fsdp rank "));
    mismatches += message.find("all_reduce(sum) of") != std::string::npos &&
                  message.find("divided by 2'") != std::string::npos &&
                  message.find("divided by 3'") != std::string::npos;
  }
  EXPECT_GE(mismatches, 2);
}

TEST(BothAxes, ARankThatEndsInAStepIsAnErrorOnEveryOther) {
  const auto messages = spoiled_step([](int rank, const Group&) {
    if (rank == 3) throw std::runtime_error("out of eggs");
  });
  for (size_t rank = 0; rank < 3; ++rank)
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank 3 "), Not(HasSubstr("timed out")))) << rank;
  EXPECT_THAT(messages[3], testing::IsEmpty());
}

// One rank alone throws; the others learn it whatever they wait for, and all begin anew together.
TEST(BothAxes, BeginAnewTogetherAfterAnExceptionOnOneRank) {
  for (const int thrower : {0, 3}) {
    SCOPED_TRACE(c10::str("rank ", thrower));
    run_thread_ranks(4, [&](int rank) {
      const auto placement = placement_over({2, 2});
      std::vector<SmallNet> nets{build_alike([] { return SmallNet(); }), build_alike([] { return SmallNet(); })};
      std::vector<Tensor> losses;
      for (auto& net : nets) {
        const bool is_disturbed = &net == &nets[0];
        const auto group = shard_blocks_over(placement, *net);
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        for (int step = 0; step < 3; ++step) {
          if (is_disturbed && step > 0) {
            EXPECT_THROW(
                {
                  ForwardScope scope(group);
                  const auto loss = small_net_loss(*net, {9, rank * 2, 2});
                  if (rank == thrower) throw std::runtime_error("out of eggs");
                  loss.backward();
                  small_net_loss(*net, {9, rank * 2, 2}).backward();
                },
                std::exception);
            group.reset_iter_state();
          }
          optimizer.zero_grad();
          Tensor loss;
          {
            ForwardScope scope(group);
            loss = small_net_loss(*net, {step, rank * 2, 2});
          }
          loss.backward();
          optimizer.step();
        }
      }
      for (size_t i = 0; i < nets[0]->parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(full_tensor(nets[0]->parameters()[i]), full_tensor(nets[1]->parameters()[i]))) << i;
    });
  }
}

// Rank 0 learns it on the shard axis, and tells the replicas that wait for it.
TEST(BothAxes, AreToldOfAnExceptionOnOneRankAsAMismatchAndStartOver) {
  run_thread_ranks(4, [](int rank) {
    auto net = build_alike([] { return SmallNet(); });
    const auto group = shard_blocks_over(placement_over({2, 2}), *net);
    for (int round = 0; round < 3; ++round) {
      if (rank == 1) {
        EXPECT_THROW(
            {
              ForwardScope scope(group);
              throw std::runtime_error("out of eggs");
            },
            std::runtime_error);
      } else {
        EXPECT_THROW(loss_of_rank(group, *net, rank).backward(), Mismatch);
      }
      group.reset_iter_state();
      loss_of_rank(group, *net, rank).backward();
    }
  });
}

// Not by the timeout, which is a minute: threads that begin second steps are none of those that could still come.
TEST(BothAxes, ReplicasThatWaitForEachOtherAreToldSo) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 2}})
    run_thread_ranks(axes.ranks(), [&](int rank) {
      const auto placement = placement_over(axes);
      OneWeight net;
      const auto group = shard_over(placement, module_tree(net), {});
      {
        ForwardScope scope(group);
        net.weight.sum().backward();
      }
      const auto& replicas = *placement.replicate().front();
      auto& order = rank < axes.shards ? replicas.communicator() : replicas.reductions();
      try {
        order.barrier({"here", {}})->wait();
        ADD_FAILURE() << "no error";
      } catch (const Mismatch& error) {
        EXPECT_THAT(error.what_without_backtrace(), HasSubstr("ranks wait for each other"));
      }
    });
}

TEST(OneModel, HasOneProcessGroup) {
  run_thread_ranks(4, [](int) {
    auto net = build_alike([] { return SmallNet(); });
    const auto pair = default_process_group()->split({{0, 1}, {2, 3}}, "pair");
    fully_shard(*net->blocks[0], {.process_group = pair});
    try {
      fully_shard(*net);
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("expected one process group"));
    }
  });
}

}  // namespace
}  // namespace fsdp::test
