// Ranks on two axes that wait for each other across them: what goes on meanwhile, in which order, and how it ends.

#include <gmock/gmock.h>

#include <latch>

#include "runtime/reduction.h"
#include "support/axes.h"
#include "support/oracle.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
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

struct SevenRows : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::zeros({7, 3}));
};

Tensor loss_of(const Group& group, const SevenRows& net) {
  const ForwardScope scope(group);
  return net.weight.square().sum();
}

// What ranks say of a step on both axes after `act` on each; all of them stay until each has an error.
std::vector<std::string> errors_of_step(Axes axes, const std::function<void(int rank, SevenRows&, const Group&)>& act) {
  std::vector<std::string> errors(static_cast<size_t>(axes.ranks()));
  std::latch have_ended(axes.ranks());
  run_thread_ranks(axes.ranks(), [&](int rank) {
    SevenRows net;
    const auto group = shard_over(placement_over(axes), module_tree(net), {});
    try {
      act(rank, net, group);
      loss_of(group, net).backward();
    } catch (const Error& error) {
      errors[static_cast<size_t>(rank)] = error.what_without_backtrace();
    }
    have_ended.arrive_and_wait();
  });
  return errors;
}

TEST(BothAxes, AFirstStepThatFailsInOneReplicaEndsTheSecondStepsOfTheOther) {
  const auto errors = errors_of_step(
      {2, 2}, [](int rank, SevenRows&, const Group& group) { group.set_gradient_divide_factor(rank == 3 ? 3 : 2); });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("divided by 3'"), Not(HasSubstr("timed out")))));
}

TEST(BothAxes, AnOptimizerStepOfOneReplicaOnlyIsAMismatch) {
  for (const auto axes : {Axes{2, 2}, Axes{1, 2}}) {
    const auto errors = errors_of_step(axes, [&](int rank, SevenRows& net, const Group& group) {
      loss_of(group, net).backward();
      torch::optim::SGD optimizer(net.parameters(), 0.1);
      if (rank >= axes.shards) optimizer.step();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_reduce(sum) of"), HasSubstr("writes to the rows (optimizer steps)"),
                                   Not(HasSubstr("timed out")))));
  }
}

}  // namespace
}  // namespace fsdp::test
