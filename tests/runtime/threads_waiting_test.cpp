// Tests of several threads of one rank that wait for late peers, in the same order on every rank or in different
// orders.

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>

#include "support/interrupted.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::Each;
using testing::HasSubstr;
using Act = std::function<void()>;
using Model = Sharded<torch::nn::Linear>;
using Use = std::function<void(Model&)>;

// `begins` is counted down at a rank's first collective after `is_armed` was set.
struct FirstCollective {
  std::atomic<bool> is_armed = false;
  std::latch begins{1};
};

// Returns options for two ranks. Their timeout ends the test if a waiting thread keeps the rank's lock.
ThreadRanksOptions announcing(FirstCollective (&first)[2]) {
  ThreadRanksOptions options;
  options.timeout = std::chrono::seconds(20);
  options.wrap = [&first](std::shared_ptr<Communicator> inner, int rank) {
    return std::make_shared<Interrupted>(std::move(inner), [&it = first[rank]] {
      if (it.is_armed.exchange(false)) it.begins.count_down();
    });
  };
  return options;
}

Model new_model() {
  return fully_shard(build_alike([] { return torch::nn::Linear(3, 4); }));
}
void forward_of(Model& model) { model(torch::ones({1, 3})); }

// On rank 0 another thread acts while the rank waits for rank 1, which opens the model only afterwards.
TEST(Threads, ReadStatisticsAndUseAnotherModelWhileTheirRankWaitsForALatePeer) {
  FirstCollective first[2];
  std::latch has_acted{1};
  run_thread_ranks_with(2, announcing(first), [&](int r) {
    auto model = new_model(), other = new_model();
    barrier();
    if (r == 1) {
      has_acted.wait();
      return forward_of(model);
    }
    auto thread = thread_of_rank([&] {
      first[0].begins.wait();
      EXPECT_EQ(model.stats().parameter_numel, 16);
      const torch::NoGradGuard no_grad;
      other->weight.mul_(2);
      has_acted.count_down();
    });
    first[0].is_armed = true;
    EXPECT_NO_THROW(forward_of(model));
    thread.join();
  });
}

// Returns the message of the Mismatch that `act` throws, or an empty string if it throws nothing.
std::string mismatch_of(const Act& act) {
  try {
    act();
  } catch (const Mismatch& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a Mismatch: " << error.what();
  }
  return {};
}

TEST(Threads, LearnThatACollectiveOfAnotherThreadFailed) {
  std::vector<std::string> errors(3);
  std::latch rank_0_waits{1};
  run_thread_ranks_with(2, {.timeout = std::chrono::seconds(20)}, [&](int r) {
    const auto group = default_process_group();
    std::thread waiting;
    if (r == 0)
      waiting = std::thread([&] {
        errors[2] = mismatch_of([&] {
          auto work = group->communicator().barrier({"a barrier of rank 0 alone", {}});
          rank_0_waits.count_down();
          work->wait();
        });
      });
    rank_0_waits.wait();
    errors[static_cast<size_t>(r)] =
        mismatch_of([&] { group->reductions().all_reduce(torch::ones({2 + r}), ReduceOp::kSum, {"sum", {}})->wait(); });
    if (waiting.joinable()) waiting.join();
  });
  EXPECT_THAT(errors, Each(HasSubstr("ranks disagree about the next collective")));
}

// On rank 0, one thread begins to use one model, and then another thread begins to use the other. Rank 1 does the same
// if `likewise` is set, and otherwise uses them in the opposite order. Returns the errors of the four threads.
std::vector<std::string> run_two_models(bool likewise, const Use& prepare_one, const Use& use_one,
                                        const Use& use_other) {
  std::vector<std::string> errors(4);
  FirstCollective first[2];
  run_thread_ranks_with(2, announcing(first), [&](int r) {
    auto one = new_model(), other = new_model();
    prepare_one(one);
    barrier();
    const bool one_is_first = r == 0 || likewise;
    const auto use = [&](int index, bool is_one) {
      errors[static_cast<size_t>(2 * r + index)] = mismatch_of([&] { is_one ? use_one(one) : use_other(other); });
    };
    first[r].is_armed = true;
    auto first_thread = thread_of_rank([&] { use(0, one_is_first); });
    auto second_thread = thread_of_rank([&] {
      first[r].begins.wait();
      use(1, !one_is_first);
    });
    first_thread.join();
    second_thread.join();
  });
  return errors;
}

TEST(Threads, ThatOpenTwoModelsFinishIfTheirOrderIsTheSameOnEachRankAndAreToldIfItIsNot) {
  const auto nothing = [](Model&) {};
  EXPECT_THAT(run_two_models(/*likewise=*/true, nothing, forward_of, forward_of), Each(std::string()));
  EXPECT_THAT(run_two_models(/*likewise=*/false, nothing, forward_of, forward_of),
              Each(HasSubstr("threads that issue them in a different order on each rank")));
}

// Scopes and reductions each have their own queue, so this is no error.
TEST(Threads, OneOfWhichReducesWhileTheOtherOpensAScopeInOppositeOrderFinish) {
  torch::Tensor loss[2];
  const auto errors = run_two_models(
      /*likewise=*/false,
      [&](Model& model) { loss[rank()] = model(torch::ones({1, 3})).sum(); },  // parameters stay whole for backward
      [&](Model& model) {
        loss[rank()].backward();
        EXPECT_TRUE(model->bias.grad().defined());
      },
      forward_of);
  EXPECT_THAT(errors, Each(std::string()));
}

}  // namespace
}  // namespace fsdp::test
