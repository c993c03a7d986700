// Tests of threads of one rank that train one model, in turns or at once, or one model each.

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>
#include <utility>

#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

// Returns the message of the exception that `act` throws.
std::string what(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

TEST(Threads, OneOfWhichIsToldToTakeTurnsLetTheOtherRanksKnow) {
  std::vector<std::string> errors(3);
  run_thread_ranks(2, [&](int r) {
    auto linear = build_alike([] { return torch::nn::Linear(3, 4); });
    auto model = fully_shard(linear);
    const auto forward = [&] { return model(torch::ones({1, 3})); };
    auto y = forward();
    if (r == 0)
      y.register_hook(
          [&](const torch::Tensor&) { thread_of_rank([&] { errors[2] = what([&] { forward(); }); }).join(); });
    errors[static_cast<size_t>(r)] = what([&] {
      y.sum().backward();
      forward();
    });
    model.reset_iter_state();
    forward().sum().backward();
    EXPECT_TRUE(linear->bias.grad().defined());
  });
  EXPECT_THAT(errors,
              Each(HasSubstr("another thread runs a backward through 'Linear' at the moment. Threads that train")));
  EXPECT_THAT(errors[1], HasSubstr("rank 0 failed in forward scope: "));
}

// Matches the errors of a thread that comes second, and of ranks whose threads came in different orders.
const auto kClearError =
    AnyOf(HasSubstr("another thread"), HasSubstr("did not finish"), HasSubstr("order on each rank"),
          HasSubstr("starts over"), HasSubstr("must issue the same collectives"));

// Numbers of ranks that have begun a round, have ended it, and have failed in it.
struct Round {
  std::atomic<int> begun{0}, ended{0}, failed{0};
};

// Runs a forward and a backward on each of two threads at once, and returns how many of them failed with a clear error.
int train_on_two_threads(const Group& group, SmallNetImpl& net) {
  std::atomic<int> failed = 0;
  std::latch both{2};
  const auto train = [&](int index) {
    try {
      both.arrive_and_wait();
      in_scope(group, [&] { return small_net_loss(net, {index, rank() * 2, 2}); }).backward();
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), kClearError);
      ++failed;
    }
  };
  auto other = thread_of_rank([&] { train(1); });
  train(0);
  other.join();
  return failed;
}

TEST(Threads, ThatTrainOneModelAtOnceGetTheRightGradientsOrAClearError) {
  for (int world : worlds_up_to(2)) {
    auto training = small_net_training();
    auto oracle = build_model(training);
    (small_net_loss(*oracle, {0, 0, 2 * world}) + small_net_loss(*oracle, {1, 0, 2 * world})).backward();
    // With one rank, the rounds go on until one of them succeeds.
    std::vector<Round> all(world == 1 ? 1000 : 12);
    std::atomic<int> right = 0;
    ThreadRanksOptions options;
    // A scope that opens inside another thread's scope meets no peer, so ranks may wait for each other. Only the
    // timeout ends this, because the other thread might still do what the ranks wait for.
    options.timeout = std::chrono::seconds(test_backend() == "shm" ? 1 : 5);
    run_thread_ranks_with(world, options, [&](int) {
      const auto net = alike_small_net(torch::kDouble);
      auto group = shard_blocks(*net);
      for (auto& round : all) {
        if (world == 1 && right > 0 && &round - all.data() >= 20) break;
        net->zero_grad();
        for (++round.begun; round.begun < world;) std::this_thread::yield();
        if (train_on_two_threads(group, *net) > 0) ++round.failed;
        for (++round.ended; round.ended < world && round.failed == 0;) std::this_thread::yield();
        if (round.failed > 0) {
          group.reset_iter_state();
          continue;
        }
        ++right;
        for (size_t i = 0; i < net->parameters().size(); ++i)
          expect_close(oracle->parameters()[i].grad(), full_grad(net->parameters()[i]), 1e-10);
      }
    });
    if (world == 1) {
      EXPECT_GT(right, 0);
    }
  }
}

// Runs `act` when it is this thread's turn. A thread that throws passes its turn on, so no thread waits for it.
void in_turn(std::atomic<int>& turn, int mine, const std::function<void()>& act) {
  for (int now = turn; now != mine; now = turn) turn.wait(now);
  try {
    act();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  ++turn;
  turn.notify_all();
}

// Runs two steps of one model on its own thread. Each forward, backward and comparison with the unsharded model comes
// between two such acts of the other model's thread.
void train_between(std::atomic<int>& turn, int index, SmallNetImpl& net, const Group& group, SmallNetImpl& oracle) {
  int next = index;
  const auto between = [&](const std::function<void()>& act) { in_turn(turn, std::exchange(next, next + 2), act); };
  for (int step = 0; step < 2; ++step) {
    const int seed = 10 * index + step;
    torch::Tensor loss;
    between([&] { loss = own_loss(net, group, seed); });
    between([&] { loss.backward(); });
    between([&] {
      small_net_loss(oracle, {seed, 0, 2 * world_size()}).backward();
      for (size_t i = 0; i < net.parameters().size(); ++i)
        expect_close(oracle.parameters()[i].grad(), full_grad(net.parameters()[i]), 1e-10);
    });
    between([&] { torch::optim::SGD(net.parameters(), 0.1).step(); });
    torch::optim::SGD(oracle.parameters(), 0.1).step();
  }
}

TEST(Threads, ThatUseTwoModelsInOneOrderOnEachRankComputeWhatTheUnshardedModelsDo) {
  constexpr int kWorld = 2, kThreads = 2;
  std::atomic<int> turns[kWorld] = {0, 0};
  run_thread_ranks(kWorld, [&](int r) {
    std::vector<std::shared_ptr<SmallNetImpl>> nets, oracles;
    std::vector<Group> groups;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      nets.push_back(alike_small_net(torch::kDouble));
      oracles.push_back(alike_small_net(torch::kDouble));
      groups.push_back(shard_blocks(*nets.back()));
    }
    for (int thread = 0; thread < kThreads; ++thread)
      threads.push_back(thread_of_rank([&, thread, at = static_cast<size_t>(thread)] {
        train_between(turns[r], thread, *nets[at], groups[at], *oracles[at]);
      }));
    for (auto& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace fsdp::test
