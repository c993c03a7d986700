// Tests of fsdp::spawn. It forks, so no code in this program may start a thread before a case calls it.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <fsdp/spawn.h>
#include <fsdp/trainer.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/disk_folder.h"
#include "comm/rendezvous/environment.h"

namespace fsdp {
namespace {

using namespace std::chrono_literals;

/// Memory that the test shares with the ranks of a case.
struct Shared {
  int sum;
  pid_t pids[4];
  char text[1000];
};

class Spawn : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer starts a thread of its own";
#endif
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = static_cast<Shared*>(memory);
  }
  void TearDown() override {
    if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
  }

  static std::string error_of(const std::function<void(int)>& fn, int nprocs, SpawnOptions options = {}) {
    try {
      spawn(fn, nprocs, options);
    } catch (const Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  Shared* shared_ = nullptr;
};

TEST_F(Spawn, EveryRankRunsInAProcessOfItsOwnWithItsEnvironment) {
  // Variables of an outer launcher do not reach the ranks.
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
  const std::string error = error_of(
      [this](int rank) {
        const auto place = rendezvous_from_environment();
        TORCH_CHECK(place && place->rank == rank && place->local_rank == rank);
        TORCH_CHECK(place->world_size == 3 && place->host == "127.0.0.1" && place->port > 0);
        TORCH_CHECK(!place->agent_hosts_store && place->attempt == 0);
        __atomic_fetch_add(&shared_->sum, 1 << rank, __ATOMIC_SEQ_CST);
        shared_->pids[rank] = getpid();
      },
      3);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  unsetenv("TORCHELASTIC_RESTART_COUNT");
  EXPECT_EQ(error, "no error");
  EXPECT_EQ(shared_->sum, 7);
  EXPECT_NE(shared_->pids[0], shared_->pids[1]);
  EXPECT_NE(shared_->pids[0], getpid());
  EXPECT_EQ(std::getenv("WORLD_SIZE"), nullptr);
}

// A shell ignores these signals in background commands of a script. The way in which children report their end is
// inherited as well.
TEST_F(Spawn, SignalsThatTheCallerIgnoresItGoesOnIgnoring) {
  const auto interrupt = signal(SIGINT, SIG_IGN), child = signal(SIGCHLD, SIG_IGN);
  const std::string error = error_of(
      [&](int rank) {
        sigset_t both, terminate, pending;
        sigemptyset(&both);
        sigaddset(&both, SIGTERM);
        terminate = both;
        sigaddset(&both, SIGINT);
        sigprocmask(SIG_BLOCK, &both, nullptr);
        __atomic_fetch_add(&shared_->sum, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&shared_->sum, __ATOMIC_SEQ_CST) < 2) std::this_thread::yield();
        if (rank == 0)
          for (const int number : {SIGINT, SIGTERM}) kill(getppid(), number);
        sigwait(&terminate, &shared_->pids[rank]);
        sigpending(&pending);
        TORCH_CHECK(sigismember(&pending, SIGINT) == 0, "SIGINT came");
        TORCH_CHECK(rank == 0, "out of eggs");
      },
      2, {.passes_signals_on = true});
  EXPECT_EQ(error, "fsdp::spawn: rank 1 failed: out of eggs");
  EXPECT_EQ(signal(SIGINT, interrupt), SIG_IGN);
  EXPECT_EQ(signal(SIGCHLD, child), SIG_IGN);
}

TEST_F(Spawn, SignalsToTheCallerGoOnToTheRanksWhereThatIsAskedFor) {
  sigset_t terminate, blocked;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  spawn(
      [&](int rank) {
        sigprocmask(SIG_BLOCK, &terminate, nullptr);
        __atomic_fetch_add(&shared_->sum, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&shared_->sum, __ATOMIC_SEQ_CST) < 2) std::this_thread::yield();
        if (rank == 0) kill(getppid(), SIGTERM);
        sigwait(&terminate, &shared_->pids[rank]);
      },
      2, {.passes_signals_on = true});
  EXPECT_EQ(shared_->pids[0], SIGTERM);
  EXPECT_EQ(shared_->pids[1], SIGTERM);
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGTERM));
}

/// A forked process that leads its own POSIX process group (`setpgid`). The object collects its stderr.
class Program {
 public:
  explicit Program(const std::function<void()>& body) {
    std::array<int, 2> ends{};
    TORCH_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      close(ends[0]);  // otherwise this process would be a reader of its own errors
      dup2(ends[1], STDERR_FILENO);
      body();
      _exit(0);
    }
    close(ends[1]);
    errors_ = fdopen(ends[0], "r");
  }
  ~Program() {
    if (!status_) kill(-pid_, SIGKILL);
    close_errors();
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  /// Closes the reading end of the program's stderr.
  void close_errors() {
    if (errors_ != nullptr) fclose(std::exchange(errors_, nullptr));
  }
  std::string line_of_errors() {
    pollfd written{fileno(errors_), POLLIN, 0};
    std::array<char, 1000> line{};
    if (poll(&written, 1, 20'000) != 1 || !fgets(line.data(), line.size(), errors_)) return "";
    return line.data();
  }
  /// Waits for the end of the program, and returns the status that waitpid gives. If `signal` is not 0, sends it again
  /// and again until then.
  std::optional<int> end(int signal = 0) {
    int status = 0;
    for (int i = 0; i < 1500 && !status_; ++i) {
      if (waitpid(pid_, &status, WNOHANG) == pid_) return status_ = status;
      if (signal != 0) kill(pid_, signal);
      usleep(20'000);
    }
    return status_;
  }

 private:
  pid_t pid_ = 0;
  FILE* errors_ = nullptr;
  std::optional<int> status_;
};

// Trains with checkpoints in `folder`. If `hangs`, each rank at last waits for a batch that never comes.
void train_until_stopped(const std::string& folder, int ranks, bool hangs, int* started) {
  struct Batches {
    bool hangs;
    int* started;
    int value = 0;
    int& operator*() { return value; }
    Batches& operator++() {
      __atomic_fetch_add(started, 1, __ATOMIC_SEQ_CST);
      while (hangs) pause();
      return *this;
    }
    bool operator!=(const Batches&) const { return true; }
    Batches begin() const { return *this; }
    Batches end() const { return *this; }
  };
  Trainer::run({.devices = ranks, .seed = 1, .save = {.folder = folder}}, [&](Trainer& trainer) {
    auto model = trainer.shard(torch::nn::Linear(4, 4));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    trainer.fit(model, optimizer, Batches{hangs, started},
                [](auto& net, int) { return net(torch::ones({1, 4})).square().mean(); });
  });
}

// Ctrl-C signals the program and its ranks; `kill` signals only the program.
TEST_F(Spawn, TheFirstSignalSavesAndStopsATrainingAndTheSecondEndsIt) {
  for (const int ranks : {1, 2})
    for (const bool to_all : {false, true})
      for (const bool hangs : {false, true}) {
        SCOPED_TRACE(c10::str(ranks, " ranks", to_all ? ", Ctrl-C" : ", kill", hangs ? ", a batch never comes" : ""));
        const test::DiskFolder folder;
        shared_->sum = 0;
        Program program([&, this] { train_until_stopped(folder.path() + "/run", ranks, hangs, &shared_->sum); });
        while (__atomic_load_n(&shared_->sum, __ATOMIC_SEQ_CST) < ranks) usleep(1000);
        kill(to_all ? -program.pid() : program.pid(), SIGINT);
        const auto line = program.line_of_errors();
        EXPECT_NE(line.find("SIGINT"), std::string::npos) << line;
        EXPECT_NE(line.find("a second signal ends"), std::string::npos) << line;
        const auto status = program.end(hangs ? SIGINT : 0);
        ASSERT_TRUE(status.has_value()) << "it never ends";
        EXPECT_EQ(WIFSIGNALED(*status) ? WTERMSIG(*status) : 0, hangs ? SIGINT : 0);
        EXPECT_EQ(std::filesystem::exists(folder.path() + "/run/latest"), !hangs);
      }
}

// Ctrl-C also ends a "tee" that reads the program's stderr.
TEST_F(Spawn, TheFirstSignalSavesATrainingWhoseErrorsNobodyReads) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const test::DiskFolder folder;
    shared_->sum = 0;
    Program program([&, this] { train_until_stopped(folder.path() + "/run", ranks, false, &shared_->sum); });
    program.close_errors();
    while (__atomic_load_n(&shared_->sum, __ATOMIC_SEQ_CST) < ranks) usleep(1000);
    kill(-program.pid(), SIGINT);
    EXPECT_EQ(program.end(), 0);
    EXPECT_TRUE(std::filesystem::exists(folder.path() + "/run/latest"));
  }
}

TEST_F(Spawn, ARankFailsIfWhatItPrintsIsLost) {
  const std::string error = error_of(
      [](int rank) {
        if (rank == 0) return;
        TORCH_CHECK(freopen("/dev/full", "w", stdout) != nullptr);
        std::cout << "the result" << std::flush;
        std::printf("another\n");
      },
      2);
  EXPECT_EQ(error, "fsdp::spawn: rank 1 failed: the output of the rank cannot be written: No space left on device");
}

TEST_F(Spawn, AFailureIsReportedNamingItsRank) {
  struct Failing {
    void (*act)(int rank);
    int ranks;
    std::string reported;
  };
  const std::vector<Failing> failures{{[](int rank) {
                                         if (rank == 1) throw std::runtime_error("out of eggs");
                                       },
                                       2, "rank 1 failed: out of eggs"},
                                      // An error message that is larger than a pipe arrives complete.
                                      {[](int) { throw std::runtime_error(std::string(300000, 'x')); }, 1,
                                       "rank 0 failed: " + std::string(300000, 'x')},
                                      {[](int rank) {
                                         if (rank == 0) raise(SIGKILL);
                                         pause();
                                       },
                                       2, "rank 0 was killed by SIGKILL."},
                                      {[](int) { std::_Exit(5); }, 1, "rank 0 exited with code 5."}};
  for (const auto& [act, ranks, reported] : failures)
    EXPECT_EQ(error_of(act, ranks, {.peer_grace = 0s}), "fsdp::spawn: " + reported);
}

TEST_F(Spawn, TheCauseIsReportedRatherThanTheLostPeer) {
  const std::string error = error_of(
      [](int rank) {
        if (rank == 0) throw PeerLost(1, "rank 1 is gone");
        usleep(100'000);
        throw Error("the cause");
      },
      2);
  EXPECT_EQ(error, "fsdp::spawn: rank 1 failed: the cause");
}

// Rank 0 ends before rank 1, because rank 1 failed.
TEST_F(Spawn, TheCauseIsReportedRatherThanWhoEndsFirstBecauseOfIt) {
  for (const char* backend : {"shm", "gloo"}) {
    shared_->pids[0] = 0;
    const std::string error = error_of(
        [this, backend](int rank) {
          init_process_group({.backend = backend});
          __atomic_store_n(&shared_->pids[rank], getpid(), __ATOMIC_SEQ_CST);
          barrier();
          if (rank == 0) return barrier();
          default_process_group()->communicator().fail("loading", "no eggs");
          while (kill(shared_->pids[0], 0) == 0) usleep(1000);
          throw Error("no eggs");
        },
        2);
    EXPECT_EQ(error, "fsdp::spawn: rank 1 failed: no eggs") << backend;
  }
}

TEST_F(Spawn, TheFirstFailureEndsTheOthersWhichAreAskedBeforeTheyAreKilled) {
  const std::string error = error_of(
      [this](int rank) {
        if (rank == 0) {
          static Shared* shared = shared_;
          signal(SIGTERM, [](int) { _exit(shared->sum = 7); });
        }
        __atomic_store_n(&shared_->pids[rank], getpid(), __ATOMIC_SEQ_CST);
        while (rank != 2) pause();
        for (const int other : {0, 1})
          while (__atomic_load_n(&shared_->pids[other], __ATOMIC_SEQ_CST) == 0) usleep(1000);
        throw Error("enough");
      },
      3, {.peer_grace = 10ms});
  EXPECT_EQ(error, "fsdp::spawn: rank 2 failed: enough");
  EXPECT_EQ(shared_->sum, 7);
  for (const int rank : {0, 1}) EXPECT_EQ(kill(shared_->pids[rank], 0), -1) << rank;
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child was left";
}

TEST_F(Spawn, SurvivorsSayWhomTheyLost) {
  for (const char* backend : {"shm", "gloo"}) {
    shared_->text[0] = '\0';
    const std::string error = error_of(
        [this, backend](int rank) {
          init_process_group({.backend = backend});
          barrier();
          if (rank == 1) raise(SIGKILL);
          try {
            barrier();
          } catch (const PeerLost& lost) {
            std::string(lost.what_without_backtrace()).copy(shared_->text, sizeof(shared_->text) - 1);
          }
        },
        2);
    EXPECT_EQ(error, "fsdp::spawn: rank 1 was killed by SIGKILL.");
    EXPECT_NE(std::string(shared_->text).find("rank 1"), std::string::npos) << backend << ": " << shared_->text;
  }
}

TEST_F(Spawn, RanksShareTheProcessors) {
  unsetenv("OMP_NUM_THREADS");
  const int alone = at::get_num_threads();
  const std::string error = error_of([alone](int) { TORCH_CHECK(at::get_num_threads() == std::max(1, alone / 2)); }, 2);
  EXPECT_EQ(error, "no error");
}

TEST_F(Spawn, FewerThanOneRankAndAProcessWithThreadsAreRefused) {
  for (const int ranks : {0, -3}) EXPECT_THROW(spawn([](int) {}, ranks), UsageError) << ranks;
  std::promise<void> tried;
  std::thread other([future = tried.get_future()]() mutable { future.wait(); });
  EXPECT_THROW(spawn([](int) {}, 1), UsageError);
  tried.set_value();
  other.join();
}

}  // namespace
}  // namespace fsdp
