// Tests of ranks that wait for each other on two axes: the work that goes on in the meantime, and how all ranks end if
// one fails.

#include <latch>
#include <stdexcept>

#include "runtime/reduction.h"
#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

// Starts a sum over both axes of 2 x 2 ranks. Each rank contributes its number + 1.
std::vector<std::shared_ptr<Work>> start_sum(const runtime::Placement& placement, const torch::Tensor& rows, int rank) {
  const ReducePlane counts{torch::zeros({1}), {{0, torch::ones({2})}}};
  const auto whole = torch::full({4}, rank + 1.0);
  return runtime::start_sum(placement, /*over_replicas=*/true, {{rows, {{0, whole}}}}, counts, 1.0, {"sum", {}}, {});
}

void wait_for(const std::vector<std::shared_ptr<Work>>& sum) {
  for (const auto& work : sum) work->wait();
}

TEST(BothAxes, SecondStepsGoOnWhileARankWaitsForSomethingElse) {
  for (const char* backend : {"shm", "gloo"}) {
    const auto act = [](int rank) {
      const auto placement = placement_over({2, 2});
      const auto rows = torch::zeros({2});
      const auto sum = start_sum(placement, rows, rank);
      // The first replica waits in the barrier. The second one enters it only when it has the sum.
      if (rank >= 2) wait_for(sum);
      barrier();
      wait_for(sum);
      EXPECT_TRUE(rows.eq(10.0).all().item<bool>());
    };
    run_thread_ranks(4, act, {.backend = backend});
  }
}

// On one replica the first step is done before the next operation over the replicas begins; on the other it is done
// only after that operation has begun.
TEST(BothAxes, SecondStepsHaveAQueueOfTheirOwn) {
  for (const char* backend : {"shm", "gloo"}) {
    std::latch is_next_under_way(1);
    const auto act = [&](int rank) {
      const auto placement = placement_over({2, 2});
      const auto rows = torch::zeros({2}), other = torch::ones({3});
      if (rank == 3) is_next_under_way.wait();
      const auto sum = start_sum(placement, rows, rank);
      if (rank != 2) placement.shard().reductions().barrier({})->wait();
      const auto next = placement.replicate().front()->reductions().all_reduce(other, ReduceOp::kSum, {"other", {}});
      if (rank == 2) {
        is_next_under_way.count_down();
        placement.shard().reductions().barrier({})->wait();
      }
      next->wait();
      wait_for(sum);
      EXPECT_TRUE(rows.eq(10.0).all().item<bool>());
      EXPECT_TRUE(other.eq(2.0).all().item<bool>());
    };
    run_thread_ranks(4, act, {.backend = backend});
  }
}

// Returns each rank's error from a backward on both axes after `act`. No rank leaves before every rank has an error.
std::vector<std::string> errors_of_step(Axes axes, const std::function<void(int, OneWeight&, const Group&)>& act) {
  std::vector<std::string> errors(static_cast<size_t>(axes.ranks()));
  std::latch have_ended(axes.ranks());
  run_thread_ranks(axes.ranks(), [&](int rank) {
    OneWeight net;
    const auto group = shard_over(placement_over(axes), module_tree(net), {});
    errors[static_cast<size_t>(rank)] = message_of([&] {
      act(rank, net, group);
      backward_of(group, net, gradient_of(rank));
    });
    have_ended.arrive_and_wait();
  });
  return errors;
}

// Expects that the errors of at least two ranks match `says`.
void expect_two_say(const std::vector<std::string>& errors, const testing::Matcher<std::string>& says) {
  EXPECT_GE(std::ranges::count_if(errors, [&](const auto& error) { return testing::Matches(says)(error); }), 2)
      << c10::Join("\n", errors);
}

TEST(BothAxes, AFirstStepThatFailsInOneReplicaEndsTheSecondStepsOfTheOther) {
  const auto errors = errors_of_step(
      {2, 2}, [](int rank, OneWeight&, const Group& group) { group.set_gradient_divide_factor(rank == 3 ? 3 : 2); });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("divided by 3'"), Not(HasSubstr("timed out")))));
}

TEST(BothAxes, ReplicasThatReduceDifferentlyAreAMismatchInTheSecondStep) {
  auto errors = errors_of_step(
      {2, 2}, [](int rank, OneWeight&, const Group& group) { group.set_gradient_divide_factor(rank < 2 ? 2 : 3); });
  EXPECT_THAT(errors, Each(HasSubstr("[fsdp rank ")));
  expect_two_say(errors,
                 AllOf(HasSubstr("all_reduce(sum) of"), HasSubstr("divided by 2'"), HasSubstr("divided by 3'")));
  errors = errors_of_step({2, 2}, [](int rank, OneWeight& net, const Group& group) {
    group.set_requires_all_reduce(rank < 2);
    backward_of(group, net, gradient_of(rank));
    group.set_requires_all_reduce(true);
  });
  expect_two_say(errors, HasSubstr("with 1 before'"));
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
  const auto act = [&](int rank) {
    const auto net = make_small_net();
    const auto group = shard_blocks_over(placement_over({2, 2}), *net);
    const auto loss = loss_of_rank(group, *net, 0);
    if (rank == 3) throw std::runtime_error("out of eggs");
    messages[static_cast<size_t>(rank)] = message_of([&] { loss.backward(); });
  };
  EXPECT_THROW(run_thread_ranks(4, act), std::exception);
  for (size_t rank = 0; rank < 3; ++rank)
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank 3 "), Not(HasSubstr("timed out")))) << rank;
}

// The other ranks get the error whatever they wait for. Ranks on the thrower's shard axis tell the replicas that wait
// for them.
TEST(BothAxes, AreToldOfAnExceptionOnOneRankAsAMismatchAndStartOver) {
  for (const int thrower : {0, 1, 3}) {
    SCOPED_TRACE(c10::str("rank ", thrower));
    run_thread_ranks(4, [&](int rank) {
      const auto placement = placement_over({2, 2});
      const auto net = make_small_net(11, 1), undisturbed = make_small_net(11, 1);
      for (const auto& model : {net, undisturbed}) {
        const auto group = shard_blocks_over(placement, *model);
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        const auto fail = [&] {
          const ForwardScope scope(group);
          if (rank == thrower && thrower == 1) throw std::runtime_error("out of eggs");
          const auto loss = small_net_loss(*model, {9, rank * 2, 2});
          if (rank == thrower) throw std::runtime_error("out of eggs");
          loss.backward();
          small_net_loss(*model, {9, rank * 2, 2}).backward();
        };
        for (int step = 0; step < 3; ++step) {
          if (model == net && step > 0) {
            if (rank == thrower) {
              EXPECT_THROW(fail(), std::runtime_error);
            } else {
              EXPECT_THROW(fail(), Mismatch);
            }
            group.reset_iter_state();
          }
          optimizer.zero_grad();
          loss_of_rank(group, *model, step).backward();
          optimizer.step();
        }
      }
      for (size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(full_tensor(net->parameters()[i]), full_tensor(undisturbed->parameters()[i]))) << i;
    });
  }
}

}  // namespace
}  // namespace fsdp::test::strategies
