// Tests of checkpoints that are written while training goes on, by threads that the tests hold up or end.

#include <fsdp/async_save.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <mutex>

#include "comm/core/fault_point.h"
#include "state/format/checkpoint_reader.h"
#include "state/trainee.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

// As long as the object lives, threads that have begun to write rows wait. release() lets them go on.
class HeldWriters {
 public:
  HeldWriters() {
    held = true;
    on_fault_point = [](const char* place) {
      if (std::string_view(place) != "part writing") return;
      std::unique_lock lock(mutex);
      changed.wait(lock, [] { return !held; });
    };
  }
  ~HeldWriters() {
    release();
    on_fault_point = nullptr;
  }
  static void release() {
    const std::lock_guard lock(mutex);
    held = false;
    changed.notify_all();
  }

 private:
  static inline std::mutex mutex;
  static inline std::condition_variable changed;
  static inline bool held = false;
};

struct AsyncRun : SavedRun {
  AsyncSave saving;
  explicit AsyncRun(const FullyShardOptions& options = {}) : SavedRun(options) {}
  void begin_save(const std::string& folder, const SaveOptions& options = {}) {
    async_save_checkpoint(saving, folder, *group, optimizer.get(), options);
  }
};

TEST(AsyncSaving, TrainingGoesOnWhileWhatWasCopiedIsWritten) {
  const TemporaryFolder folder;
  const HeldWriters held;
  Recorded recorded(3);
  run_thread_ranks(
      3,
      [&](int r) {
        const auto& log = recorded.log(r);
        AsyncRun trained;
        for (int i = 0; i < 2; ++i) trained.train(i);
        const auto saved = trained.values();
        recorded.clear(r);
        trained.begin_save(folder.path(), {.step = 2});
        EXPECT_THAT(log.entries(), SizeIs(4)) << "lengths and texts of two meetings";
        EXPECT_TRUE(trained.saving.in_flight());
        for (int i = 2; i < 4; ++i) trained.train(i);
        const auto last = trained.values();
        EXPECT_THAT(state::complete_steps(folder.path()), IsEmpty());
        recorded.clear(r);
        barrier();
        if (r == 0) HeldWriters::release();
        trained.saving.wait();
        EXPECT_THAT(log.entries(), SizeIs(1 + 4)) << "the barrier and two meetings";
        EXPECT_FALSE(trained.saving.in_flight());
        EXPECT_THAT(state::problems_of(folder / "step-000000000002"), IsEmpty());
        AsyncRun loaded;
        EXPECT_EQ(loaded.load(folder.path()).step, 2);
        expect_same_values(saved, loaded.values());
        for (int i = 2; i < 4; ++i) loaded.train(i);
        expect_same_values(last, loaded.values());
      },
      recorded.options);
  EXPECT_THAT(state::incomplete_names(folder.path()), IsEmpty());
}

TEST(AsyncSaving, ReplicasAndShardedOptimizersSaveTheSameFiles) {
  for (const auto strategy : {Strategy::kReplicate, Strategy::kShardOptimizer}) {
    const TemporaryFolder folder, other;
    run_thread_ranks(2, [&](int) {
      AsyncRun trained({.strategy = strategy});
      trained.train(0);
      trained.begin_save(folder.path());
      trained.save(other.path());
      trained.saving.wait();
    });
    for (const auto* name : {"model-00000-of-00002", "model-00001-of-00002", "training-00001-of-00002"})
      EXPECT_EQ(state::bytes_in_file(folder / "step-000000000000/" + name + ".safetensors"),
                state::bytes_in_file(other / "step-000000000000/" + name + ".safetensors"))
          << strategy << name;
  }
}

TEST(AsyncSaving, ASecondSaveWaitsForTheFirstAndTheEndForBoth) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    {
      AsyncRun trained;
      for (int64_t step = 1; step <= 3; ++step) trained.begin_save(folder.path(), {.step = step, .keep = 2});
    }
    barrier();
  });
  EXPECT_THAT(state::complete_steps(folder.path()), ElementsAre(2, 3));
  EXPECT_THAT(state::incomplete_names(folder.path()), IsEmpty());
}

TEST(AsyncSaving, AnErrorOfOneRankIsThatOfTheNextCallOnEveryRank) {
  for (const bool waits : {true, false}) {
    const TemporaryFolder folder;
    run_thread_ranks(2, [&](int r) {
      AsyncRun trained;
      save_checkpoint(folder.path(), *trained.group, nullptr, {.step = 1});
      trained.net->register_buffer("odd", r == 1 ? torch::empty({1}, at::kBits8) : torch::zeros({1}));
      const auto save_net = [&](int64_t step) {
        async_save_checkpoint(trained.saving, folder.path(), *trained.net, nullptr, {.step = step});
      };
      save_net(2);
      trained.train(0);
      EXPECT_THAT(error_of([&] { waits ? trained.saving.wait() : save_net(3); }),
                  AllOf(HasSubstr(waits ? "AsyncSave::wait: rank 1: " : "async_save_checkpoint: rank 1: "),
                        HasSubstr("tensor 'odd' has the dtype")));
      EXPECT_FALSE(trained.saving.in_flight());
      trained.train(1);
      trained.net->named_buffers()["odd"].set_data(torch::zeros({1}));
      save_net(4);
      trained.saving.wait();
    });
    EXPECT_THAT(state::complete_steps(folder.path()), ElementsAre(1, 4));
    EXPECT_THAT(state::incomplete_names(folder.path()), IsEmpty());
  }
}

// Forks a child that runs `act`. An alarm ends the child if it has to wait.
pid_t fork_child(const auto& act) {
  const auto child = fork();
  if (child != 0) return child;
  signal(SIGALRM, SIG_DFL);
  alarm(20);
  act();
  _exit(0);
}

// A child that is forked during a save, e.g. to load data or to compile something, also has this process's files open.
TEST(AsyncSaving, AChildThatWasForkedMeanwhileHoldsNothingUp) {
  const TemporaryFolder folder;
  const HeldWriters held;
  run_thread_ranks(1, [&](int) {
    AsyncRun trained;
    trained.begin_save(folder.path());
    const auto child = fork_child([] {
      for (;;) pause();
    });
    ASSERT_GE(child, 0);
    HeldWriters::release();
    trained.saving.wait();
    save_checkpoint(folder.path(), *trained.group, nullptr, {.step = 2});
    EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "the child is still there";
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  });
  EXPECT_THAT(state::complete_steps(folder.path()), ElementsAre(0, 2));
}

// A child destroys the AsyncSave when it exits, if the program's AsyncSave is static.
TEST(AsyncSaving, AChildThatLetsGoOfItWaitsForNothingAndEndsNothing) {
  const TemporaryFolder folder;
  const HeldWriters held;
  run_thread_ranks(1, [&](int) {
    AsyncRun trained;
    trained.begin_save(folder.path());
    const auto child = fork_child([&] { const AsyncSave let_go(std::move(trained.saving)); });
    ASSERT_GE(child, 0);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    HeldWriters::release();
    trained.saving.wait();
  });
  EXPECT_THAT(state::complete_steps(folder.path()), ElementsAre(0));
}

TEST(AsyncSaving, AFolderThatGoesMeanwhileIsNamedAndTrainingGoesOn) {
  const TemporaryFolder folder;
  const HeldWriters held;
  run_thread_ranks(2, [&](int r) {
    AsyncRun trained;
    trained.begin_save(folder / "run");
    barrier();
    if (r == 0) {
      std::filesystem::remove_all(folder / "run");
      HeldWriters::release();
    }
    EXPECT_THAT(error_of([&] { trained.saving.wait(); }),
                AllOf(HasSubstr(folder / "run"), HasSubstr("No such file or directory")));
    trained.train(0);
  });
}

TEST(AsyncSaving, MistakesAreErrorsAtOnce) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    AsyncRun trained;
    {
      ForwardScope scope(*trained.group);
      EXPECT_THROW(trained.begin_save(folder.path()), UsageError);
    }
    EXPECT_THROW(trained.begin_save(folder.path(), {.step = -1}), UsageError);
    EXPECT_THROW(trained.begin_save(folder.path(), {.extra = "no JSON"}), Error);
    EXPECT_FALSE(trained.saving.in_flight());
    trained.saving.wait();  // there is nothing to wait for
  });
  EXPECT_THAT(state::incomplete_names(folder.path()), IsEmpty());
}

// One of two ranks ends at the fault point in FSDP_TEST_PLACE, while the checkpoint of step 2 is written.
PROCESS_CASE(one_rank_ends_while_it_saves) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(30)});
  const std::string folder = std::getenv("FSDP_TEST_FOLDER");
  AsyncRun trained;
  trained.save(folder, {.step = 1});
  if (std::to_string(rank()) == std::getenv("FSDP_TEST_VICTIM"))
    on_fault_point = [](const char* place) {
      if (std::string_view(place) == std::getenv("FSDP_TEST_PLACE")) raise(SIGKILL);
    };
  trained.begin_save(folder, {.step = 2});
  if (error_of<PeerLost>([&] { trained.saving.wait(); }).empty()) throw std::runtime_error("expected an error");
}

TEST(AsyncSaving, TheEndOfARankAtAnyPlaceLeavesACompleteCheckpoint) {
  struct Ended {
    int victim;
    const char* place;
    int64_t newest;
  };
  for (const auto& [victim, place, newest] :
       {Ended{1, "part writing", 1}, {1, "part written", 2}, {0, "part written", 1}}) {
    SCOPED_TRACE(c10::str("rank ", victim, ", ", place));
    const TemporaryFolder folder;
    ProcessRanks ranks("one_rank_ends_while_it_saves", {.world_size = 2,
                                                        .environment = {{"FSDP_TEST_FOLDER", folder.path()},
                                                                        {"FSDP_TEST_VICTIM", std::to_string(victim)},
                                                                        {"FSDP_TEST_PLACE", place}}});
    EXPECT_EQ(ranks.wait(victim).signal, SIGKILL) << ranks.wait(victim).output;
    EXPECT_EQ(ranks.wait(1 - victim).exit_code, 0) << ranks.wait(1 - victim).output;
    state::CheckpointReader reader(folder.path());
    EXPECT_EQ(reader.manifest().step, newest);
    EXPECT_THAT(state::problems_of(reader.path()), IsEmpty());
    EXPECT_EQ(state::incomplete_names(folder.path()).empty(), victim == 1);
  }
}

}  // namespace
}  // namespace fsdp::test
