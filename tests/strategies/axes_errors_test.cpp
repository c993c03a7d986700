// Ranks on two axes that wait for each other across them: what goes on meanwhile, and how it ends if one of them fails.

#include <stdexcept>

#include "runtime/reduction.h"
#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using torch::Tensor;

constexpr std::array<int64_t, 3> kHalves{0, 2, 4};

// Starts the sum of what each rank gives, its number + 1, over both axes of 2 x 2 ranks.
std::shared_ptr<Work> start_sum(const runtime::Placement& placement, const Tensor& rows, int rank) {
  const auto whole = torch::full({4}, rank + 1.0);
  return runtime::reduction_over(placement)->start(rows, {{0, whole}}, kHalves, 1.0, {"sum", {}}, {}).work;
}

TEST(BothAxes, SecondStepsGoOnWhileARankWaitsForSomethingElse) {
  for (const char* backend : {"shm", "gloo"})
    run_thread_ranks(4,
                     [](int rank) {
                       const auto placement = placement_over({2, 2});
                       const auto rows = torch::zeros({2});
                       const auto sum = start_sum(placement, rows, rank);
                       // The second replica comes to the barrier, in which the first one waits, when it has the sum.
                       if (rank >= 2) sum->wait();
                       barrier();
                       sum->wait();
                       EXPECT_TRUE(rows.eq(10.0).all().item<bool>());
                     },
                     {.backend = backend});
}

// One replica's first step is done before, the other's after what comes next over the replicas.
TEST(BothAxes, SecondStepsHaveAnOrderOfTheirOwn) {
  for (const char* backend : {"shm", "gloo"}) {
    std::latch is_next_under_way(1);
    run_thread_ranks(4,
                     [&](int rank) {
                       const auto placement = placement_over({2, 2});
                       const auto rows = torch::zeros({2}), other = torch::ones({3});
                       if (rank == 3) is_next_under_way.wait();
                       const auto sum = start_sum(placement, rows, rank);
                       if (rank != 2) placement.shard().reductions().barrier({})->wait();
                       const auto next =
                           placement.replicate().front()->reductions().all_reduce(other, ReduceOp::kSum, {"other", {}});
                       if (rank == 2) {
                         is_next_under_way.count_down();
                         placement.shard().reductions().barrier({})->wait();
                       }
                       next->wait();
                       sum->wait();
                       EXPECT_TRUE(rows.eq(10.0).all().item<bool>());
                       EXPECT_TRUE(other.eq(2.0).all().item<bool>());
                     },
                     {.backend = backend});
  }
}

TEST(BothAxes, AFirstStepThatFailsInOneReplicaEndsTheSecondStepsOfTheOther) {
  const auto errors = errors_of_step(
      {2, 2}, [](int rank, OneWeight&, const Group& group) { group.set_gradient_divide_factor(rank == 3 ? 3 : 2); });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("divided by 3'"), Not(HasSubstr("timed out")))));
}

TEST(BothAxes, ReplicasThatReduceDifferentlyAreAMismatchInTheSecondStep) {
  const auto errors = errors_of_step(
      {2, 2}, [](int rank, OneWeight&, const Group& group) { group.set_gradient_divide_factor(rank < 2 ? 2 : 3); });
  EXPECT_THAT(errors, Each(HasSubstr("[fsdp rank ")));
  EXPECT_GE(std::ranges::count_if(errors,
                                  [](const std::string& error) {
                                    return error.find("all_reduce(sum) of") != std::string::npos &&
                                           error.find("divided by 2'") != std::string::npos &&
                                           error.find("divided by 3'") != std::string::npos;
                                  }),
            2)
      << c10::Join("\n", errors);
}

TEST(BothAxes, AnOptimizerStepOfOneReplicaOnlyIsAMismatch) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 2}}) {
    const auto errors = errors_of_step(axes, [&](int rank, OneWeight& net, const Group& group) {
      backward_of(group, net, gradient_of(rank));
      torch::optim::SGD optimizer(net.parameters(), 0.1);
      if (rank >= axes.shards) optimizer.step();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_reduce(sum) of"), HasSubstr("writes to the rows (optimizer steps)"),
                                   Not(HasSubstr("timed out")))));
  }
}

TEST(BothAxes, ARankThatEndsInAStepIsAnErrorOnEveryOther) {
  std::vector<std::string> messages(4);
  EXPECT_THROW(run_thread_ranks(4,
                                [&](int rank) {
                                  const auto net = make_small_net();
                                  const auto group = shard_blocks_over(placement_over({2, 2}), *net);
                                  const auto loss = loss_of_rank(group, *net, 0);
                                  if (rank == 3) throw std::runtime_error("out of eggs");
                                  messages[static_cast<size_t>(rank)] = message_of([&] { loss.backward(); });
                                }),
               std::exception);
  for (size_t rank = 0; rank < 3; ++rank)
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank 3 "), Not(HasSubstr("timed out")))) << rank;
}

// One rank alone throws; the others learn it whatever they wait for, and all begin anew together.
TEST(BothAxes, BeginAnewTogetherAfterAnExceptionOnOneRank) {
  for (const int thrower : {0, 3}) {
    SCOPED_TRACE(c10::str("rank ", thrower));
    run_thread_ranks(4, [&](int rank) {
      const auto placement = placement_over({2, 2});
      std::vector<std::shared_ptr<SmallNetImpl>> nets{make_small_net(11, 1), make_small_net(11, 1)};
      for (const auto& net : nets) {
        const auto group = shard_blocks_over(placement, *net);
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        for (int step = 0; step < 3; ++step) {
          if (net == nets[0] && step > 0) {
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
          loss_of_rank(group, *net, step).backward();
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
    const auto net = make_small_net();
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
        EXPECT_THROW(loss_of_rank(group, *net, 0).backward(), Mismatch);
      }
      group.reset_iter_state();
      loss_of_rank(group, *net, 0).backward();
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
      backward_of(group, net, gradient_of(rank));
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
    const auto net = make_small_net();
    fully_shard(*net->blocks[0], {.process_group = default_process_group()->split({{0, 1}, {2, 3}}, "pair")});
    EXPECT_THAT(message_of<UsageError>([&] { fully_shard(static_cast<torch::nn::Module&>(*net)); }),
                HasSubstr("expected one process group"));
  });
}

}  // namespace
}  // namespace fsdp::test::strategies
