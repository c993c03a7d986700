// Threads of one rank that train: one model in turns or at once, or a model each.

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>
#include <utility>

#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::Each;
using testing::HasSubstr;

// What `act` throws.
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

// What the thread that comes second is told, and what the ranks are if their threads came in different orders.
constexpr const char* kClearErrors[] = {"another thread", "did not finish", "order on each rank", "starts over",
                                        "must issue the same collectives"};

// The ranks of a test that go round by round: whether a rank failed, as soon as that is known.
struct Round {
  std::atomic<int> begun{0}, ended{0}, failed{0};
};

// A forward and a backward on each of two threads at once; what they throw.
std::vector<std::string> train_on_two_threads(const Group& group, SmallNetImpl& net) {
  std::vector<std::string> errors(2);
  std::latch both{2};
  const auto train = [&](int index) {
    try {
      both.arrive_and_wait();
      ForwardScope scope(group);
      const auto loss = small_net_loss(net, {index, rank() * 2, 2});
      scope.close();
      loss.backward();
    } catch (const c10::Error& error) {
      errors[static_cast<size_t>(index)] = error.what_without_backtrace();
    } catch (const std::exception& error) {
      errors[static_cast<size_t>(index)] = error.what();
    }
  };
  auto other = thread_of_rank([&] { train(1); });
  train(0);
  other.join();
  std::erase(errors, std::string());
  return errors;
}

TEST(Threads, ThatTrainOneModelAtOnceGetTheRightGradientsOrAClearError) {
  for (int world : worlds_up_to(2)) {
    auto training = small_net_training();
    auto oracle = build_model(training);
    (small_net_loss(*oracle, {0, 0, 2 * world}) + small_net_loss(*oracle, {1, 0, 2 * world})).backward();
    std::vector<std::shared_ptr<SmallNetImpl>> models;
    for (int r = 0; r < world; ++r) models.push_back(build_model(training));
    // At world 1, as many as it takes until one goes well.
    std::vector<Round> all(world == 1 ? 1000 : 20);
    std::atomic<int> right = 0;
    const auto train = [&](int r) {
      auto& net = *models[static_cast<size_t>(r)];
      auto group = shard_blocks(net);
      for (auto& round : all) {
        if (world == 1 && right > 0 && &round - all.data() >= 40) break;
        net.zero_grad();
        for (++round.begun; round.begun < world;) std::this_thread::yield();
        const auto errors = train_on_two_threads(group, net);
        for (const auto& error : errors)
          EXPECT_THAT(kClearErrors, testing::Contains(testing::ResultOf(
                                        [&](const char* text) { return error.find(text) != std::string::npos; }, true)))
              << error;
        if (!errors.empty()) ++round.failed;
        for (++round.ended; round.ended < world && round.failed == 0;) std::this_thread::yield();
        if (round.failed > 0) {
          group.reset_iter_state();
          continue;
        }
        ++right;
        for (size_t i = 0; i < net.parameters().size(); ++i)
          expect_close(oracle->parameters()[i].grad(), full_grad(net.parameters()[i]), 1e-10);
      }
    };
    ThreadRanksOptions options;
    // A scope that opens inside another thread's meets nobody. So ranks may wait for each other, which is found after
    // the timeout: the thread that joins the other one might do what they wait for.
    options.timeout = std::chrono::seconds(test_backend() == "shm" ? 1 : 5);
    run_thread_ranks(world, train, options);
    if (world == 1) {
      EXPECT_GT(right, 0);
    }
  }
}

// Of the threads of one rank, which fail one by one: none waits for one that threw.
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

// Three steps of one model on a thread of its own. Each forward, backward, comparison with the unsharded model and
// update stands between two of the other model.
void train_between(std::atomic<int>& turn, int index, SmallNetImpl& net, const Group& group, SmallNetImpl& oracle) {
  torch::optim::SGD sgd(net.parameters(), 0.1), oracle_sgd(oracle.parameters(), 0.1);
  int next = index;
  const auto between = [&](const std::function<void()>& act) { in_turn(turn, std::exchange(next, next + 2), act); };
  for (int step = 0; step < 3; ++step) {
    const int seed = 10 * index + step;
    torch::Tensor loss;
    between([&] {
      const ForwardScope scope(group);
      loss = small_net_loss(net, {seed, rank() * 2, 2});
    });
    between([&] { loss.backward(); });
    between([&] {
      auto expected = small_net_loss(oracle, {seed, 0, 2 * world_size()});
      expected.backward();
      expect_close(expected.detach(), torch::scalar_tensor(mean(loss.item<double>()), torch::kDouble), 1e-10);
      for (size_t i = 0; i < net.parameters().size(); ++i)
        expect_close(oracle.parameters()[i].grad(), full_grad(net.parameters()[i]), 1e-10);
    });
    between([&] {
      for (auto* optimizer : {&sgd, &oracle_sgd}) {
        optimizer->step();
        optimizer->zero_grad();
      }
    });
  }
}

TEST(Threads, ThatUseTwoModelsInOneOrderOnEachRankComputeWhatTheUnshardedModelsDo) {
  constexpr size_t kWorld = 2, kThreads = 2;
  auto training = small_net_training();
  std::vector<std::shared_ptr<SmallNetImpl>> nets, oracles;
  for (auto* models : {&nets, &oracles})
    for (size_t i = 0; i < kWorld * kThreads; ++i) models->push_back(build_model(training));
  std::atomic<int> turns[kWorld] = {0, 0};
  run_thread_ranks(kWorld, [&](int r) {
    std::vector<Group> groups;
    const auto at = [&](size_t thread) { return static_cast<size_t>(r) * kThreads + thread; };
    for (size_t thread = 0; thread < kThreads; ++thread) groups.push_back(shard_blocks(*nets[at(thread)]));
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread)
      threads.push_back(thread_of_rank([&, thread] {
        train_between(turns[r], static_cast<int>(thread), *nets[at(thread)], groups[thread], *oracles[at(thread)]);
      }));
    for (auto& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace fsdp::test
