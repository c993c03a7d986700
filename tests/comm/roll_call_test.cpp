// Tests of a process's alarm, of the roll call that follows it, and of the calls to the store that both make.

#include "comm/failure/roll_call.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "comm/frame.h"
#include "support/stores.h"

namespace fsdp::test {
namespace {

// When a program exits, it leaves every group, even one that another thread is about to destroy.
TEST(RollCall, MayBeLeftByTwoThreadsAtOnce) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int round = 0; round < 20; ++round) {
    const auto call = RollCall::start([&] { return store; }, {}, {});
    std::thread other([&] { call->leave(); });
    call->leave();
    other.join();
    EXPECT_TRUE(store->check({"roll_call/0/report/0"}));
    store->deleteKey("roll_call/0/report/0");
  }
}

// Rank 0 has ended, because it needed nothing more from the other ranks, and its store ended with it.
TEST(RollCall, NamesAStoppedNeighbourWhereTheStoreIsGone) {
  const pid_t stopped = fork();
  if (stopped == 0) {
    ::raise(SIGSTOP);
    _exit(0);
  }
  ASSERT_EQ(waitpid(stopped, nullptr, WUNTRACED), stopped);
  std::atomic<bool> is_gone = false;
  const auto store = c10::make_intrusive<WatchedStore>(c10::make_intrusive<c10d::HashStore>(), [&] {
    if (is_gone) throw std::runtime_error("connection closed");
  });
  const RollCallOptions options{.store_in_rank_0 = true, .neighbours = {{2, stopped}}};
  const auto call = RollCall::start([&] { return store; }, {3, 4}, options);
  is_gone = true;
  EXPECT_EQ(call->alarm(Cause::kTransport, 2, "barrier", "did not come").rank, 2);
  is_gone = false;
  kill(stopped, SIGKILL);
  waitpid(stopped, nullptr, 0);
}

// Rank 2 is lost, and a group of ranks 0 and 2 finds that out. Ranks 0 and 1 hear of it in their group of all ranks.
TEST(RollCall, ThatFindsARankGoneEndsEveryGroupOfTheRanksThatHearOfIt) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto start = [&](const char* group, const Ranks& ranks, const std::shared_ptr<Alarm>& alarm) {
    const auto connect = [&] { return c10::make_intrusive<c10d::PrefixStore>(group, store); };
    return RollCall::start(connect, ranks, {.answer_time = std::chrono::milliseconds(500), .alarm = alarm});
  };
  const auto alarm_of_0 = Alarm::make(), alarm_of_1 = Alarm::make();
  const auto all_of_0 = start("all", {0, 3}, alarm_of_0), all_of_1 = start("all", {1, 3}, alarm_of_1);
  const auto pair = start("pair", Ranks{0, 3}.in_subgroup("pair", {0, 2}), alarm_of_0);
  const auto verdict = pair->alarm(Cause::kTransport, 1, "barrier", "no news");
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_TRUE(verdict.is_gone);
  for (const auto& call : {all_of_0, all_of_1}) {
    while (!call->verdict()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(call->verdict()->text, verdict.text);
  }
}

// Returns the number of store calls per rank, averaged over 32 ranks, from one rank's alarm until all ranks know the
// verdict.
double questions_by_rank(bool one_is_silent) {
  constexpr int kRanks = 32;
  std::atomic<int> asked = 0;
  const auto store = c10::make_intrusive<WatchedStore>(c10::make_intrusive<c10d::HashStore>(), [&] { ++asked; });
  // If a rank is silent, the others wait for it until the answer time is over. Otherwise the answer time only has to
  // suffice on a busy machine.
  std::vector<std::shared_ptr<RollCall>> calls;
  for (int rank = 0; rank < (one_is_silent ? kRanks - 1 : kRanks); ++rank) {
    const RollCallOptions options{.answer_time = std::chrono::seconds(one_is_silent ? 2 : 20)};
    calls.push_back(RollCall::start([&] { return store; }, {rank, kRanks}, options));
  }
  asked = 0;
  const auto verdict = calls[0]->alarm(Cause::kTimeout, kRanks - 1, "barrier", "no news");
  EXPECT_EQ(verdict.rank, kRanks - 1);
  EXPECT_EQ(verdict.kind, one_is_silent ? Verdict::Kind::kPeerLost : Verdict::Kind::kMismatch);
  for (const auto& call : calls) {
    while (!call->verdict()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(call->verdict()->text, verdict.text);
  }
  const int questions = asked;
  for (const auto& call : calls) call->leave();
  return static_cast<double>(questions) / kRanks;
}

TEST(AnAlarm, AsksTheStoreInProportionToTheRanks) {
  EXPECT_LE(questions_by_rank(/*one_is_silent=*/false), 20);
  EXPECT_LE(questions_by_rank(/*one_is_silent=*/true), 25);
}

TEST(WhileNothingFails, TheStoreIsAskedNothingHoweverManyGroupsThereAre) {
  std::atomic<int> asked = 0;
  const auto store = c10::make_intrusive<WatchedStore>(c10::make_intrusive<c10d::HashStore>(), [&] { ++asked; });
  std::barrier together(2);
  run_threads(2, [&](int rank) {
    const auto all = make_thread_rank(store, rank, 2, {.backend = "gloo"});
    std::vector<std::shared_ptr<ProcessGroup>> groups{all};
    for (int i = 0; i < 3; ++i) groups.push_back(all->split({{0, 1}}, str_cat("group ", i)));
    together.arrive_and_wait();
    const int before = asked;
    together.arrive_and_wait();
    // If ranks called the store regularly, they would do so within this time.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    for (float is_over = 0; is_over == 0;) {
      for (const auto& group : groups) group->communicator().barrier({})->wait();
      const at::Tensor over = at::full({1}, std::chrono::steady_clock::now() > end ? 1.0f : 0.0f);
      all->communicator().all_reduce(over, ReduceOp::kMax, {"over"})->wait();
      is_over = over.item<float>();
    }
    EXPECT_EQ(asked, before);
    together.arrive_and_wait();
  });
}

}  // namespace
}  // namespace fsdp::test
