// Several threads of one rank, which wait for late peers and come in the same order on every rank, or not.

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>

#include "support/decorator.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::Each;
using testing::HasSubstr;

// Calls `say` before each collective, under the rank's lock.
class Announcing : public Decorator {
 public:
  using Say = std::function<void(Operation, const Tag&)>;
  Announcing(std::shared_ptr<Communicator> inner, std::string lane, Say say)
      : Decorator(std::move(inner), std::move(lane)), say_(std::move(say)) {}

 private:
  void before(Operation operation, uint64_t, Tag& tag) override { say_(operation, tag); }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string& name) override {
    return std::make_shared<Announcing>(std::move(duplicate), name, say_);
  }

  const Say say_;
};

// Two ranks; `say` on each of them.
ThreadRanksOptions announcing(const std::function<void(int rank, Operation, const Tag&)>& say) {
  ThreadRanksOptions options;
  options.timeout = std::chrono::seconds(20);
  options.wrap = [say](std::shared_ptr<Communicator> inner, int rank) {
    return std::make_shared<Announcing>(std::move(inner), "main",
                                        [=](Operation operation, const Tag& tag) { say(rank, operation, tag); });
  };
  return options;
}

TEST(Threads, ReadStatisticsWhileTheirRankWaitsForALatePeer) {
  std::latch rank_0_waits{1}, stats_are_there{1};
  std::atomic<bool> trains = false;
  run_thread_ranks(
      2,
      [&](int r) {
        auto linear = build_alike([] { return torch::nn::Linear(3, 4); });
        auto model = fully_shard(linear);
        barrier();
        if (r == 1) {
          stats_are_there.wait();
          model(torch::ones({1, 3}));
          return;
        }
        auto other = thread_of_rank([&] {
          rank_0_waits.wait();
          EXPECT_EQ(model.stats().parameter_numel, 16);
          stats_are_there.count_down();
        });
        trains = true;
        EXPECT_NO_THROW(model(torch::ones({1, 3})));
        other.join();
      },
      announcing([&](int rank, Operation, const Tag&) {
        if (rank == 0 && trains.exchange(false)) rank_0_waits.count_down();
      }));
}

// Ends by the timeout where the thread that waits keeps the rank's lock.
TEST(Threads, UseAnotherModelWhileTheirRankWaitsForALatePeer) {
  std::latch rank_0_waits{1}, other_is_used{1};
  std::atomic<bool> trains = false;
  run_thread_ranks(
      2,
      [&](int r) {
        const auto build = [] { return torch::nn::Linear(3, 4); };
        auto one = build_alike(build), other = build_alike(build);
        auto one_model = fully_shard(one), other_model = fully_shard(other);
        barrier();
        if (r == 1) {
          other_is_used.wait();
          one_model(torch::ones({1, 3}));
          return;
        }
        auto user = thread_of_rank([&] {
          rank_0_waits.wait();
          const torch::NoGradGuard no_grad;
          other->weight.mul_(2);
          other_is_used.count_down();
        });
        trains = true;
        EXPECT_NO_THROW(one_model(torch::ones({1, 3})));
        user.join();
      },
      announcing([&](int rank, Operation, const Tag&) {
        if (rank == 0 && trains.exchange(false)) rank_0_waits.count_down();
      }));
}

TEST(Threads, LearnThatACollectiveOfAnotherThreadFailed) {
  std::vector<std::string> errors(3);
  const auto use = [&](size_t index, const std::function<std::shared_ptr<Work>()>& begin) {
    try {
      begin()->wait();
    } catch (const Mismatch& error) {
      errors[index] = error.what_without_backtrace();
    }
  };
  std::latch rank_0_waits{1};
  ThreadRanksOptions options;
  options.timeout = std::chrono::seconds(20);
  run_thread_ranks(
      2,
      [&](int r) {
        const auto group = default_process_group();
        const auto sum = [&](int64_t numel) {
          return group->reductions().all_reduce(torch::ones({numel}), ReduceOp::kSum, {"sum", {}});
        };
        std::thread waiting;
        if (r == 0)
          waiting = std::thread([&] {
            use(0, [&] {
              auto work = group->communicator().barrier({"a barrier of rank 0 alone", {}});
              rank_0_waits.count_down();
              return work;
            });
          });
        rank_0_waits.wait();
        use(static_cast<size_t>(1 + r), [&] { return sum(2 + r); });
        if (waiting.joinable()) waiting.join();
      },
      options);
  EXPECT_THAT(errors, Each(HasSubstr("ranks disagree about the next collective")));
}

constexpr const char* kInAnotherOrder = "threads that come in another order on each rank";

// What `act` says if it does not finish.
std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Mismatch& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a Mismatch: " << error.what();
  }
  return {};
}

// On rank 0 a thread begins to use one model, then another thread the other model; on rank 1 `likewise` or the other
// way round. The errors of the four.
std::vector<std::string> run_two_models(
    bool likewise, const std::function<void(torch::nn::Linear&, Sharded<torch::nn::Linear>&)>& prepare_one,
    const std::function<void(Sharded<torch::nn::Linear>&)>& use_one,
    const std::function<void(Sharded<torch::nn::Linear>&)>& use_other) {
  std::vector<std::string> errors(4);
  std::atomic<bool> armed[2] = {false, false};
  std::latch first_began[2] = {std::latch(1), std::latch(1)};
  run_thread_ranks(
      2,
      [&](int r) {
        const auto build = [] { return torch::nn::Linear(3, 4); };
        auto one = build_alike(build), other = build_alike(build);
        auto one_model = fully_shard(one), other_model = fully_shard(other);
        prepare_one(one, one_model);
        barrier();
        const bool one_is_first = r == 0 || likewise;
        const auto use = [&](bool is_one) { is_one ? use_one(one_model) : use_other(other_model); };
        armed[r] = true;
        auto first = thread_of_rank([&] { errors[2 * r] = error_of([&] { use(one_is_first); }); });
        auto second = thread_of_rank([&] {
          first_began[r].wait();
          errors[2 * r + 1] = error_of([&] { use(!one_is_first); });
        });
        first.join();
        second.join();
      },
      announcing([&](int rank, Operation, const Tag&) {
        if (armed[rank].exchange(false)) first_began[rank].count_down();
      }));
  return errors;
}

TEST(Threads, ThatOpenTwoModelsInOppositeOrderOnTwoRanksAreToldSo) {
  const auto nothing = [](auto&, auto&) {};
  const auto forward = [](auto& model) { model(torch::ones({1, 3})); };
  EXPECT_THAT(run_two_models(/*likewise=*/false, nothing, forward, forward), Each(HasSubstr(kInAnotherOrder)));
}

TEST(Threads, ThatOpenTwoModelsInOneOrderOnTwoRanksFinish) {
  const auto nothing = [](auto&, auto&) {};
  const auto forward = [](auto& model) { model(torch::ones({1, 3})); };
  EXPECT_THAT(run_two_models(/*likewise=*/true, nothing, forward, forward), Each(std::string()));
}

// Scopes and reductions have an order each, so nothing is wrong.
TEST(Threads, OneOfWhichReducesWhileTheOtherOpensAScopeInOppositeOrderFinish) {
  torch::Tensor loss[2];
  const auto errors = run_two_models(
      /*likewise=*/false,
      [&](auto&, auto& model) {
        loss[rank()] = model(torch::ones({1, 3})).sum();  // whole parameters stay: backward gathers nothing
      },
      [&](auto& model) {
        loss[rank()].backward();
        EXPECT_TRUE(model->bias.grad().defined());
      },
      [](auto& model) { model(torch::ones({1, 3})); });
  EXPECT_THAT(errors, Each(std::string()));
}

}  // namespace
}  // namespace fsdp::test
