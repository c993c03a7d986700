#pragma once
/// \file
/// Ranks that are processes, for tests of lost ranks, environment variables and process-wide state.
///
/// PROCESS_CASE defines what each rank runs. The test starts its own executable again, once per rank, with the case's
/// name in the environment, and then checks how the ranks ended:
///
///     PROCESS_CASE(barrier_works) {
///       fsdp::init_process_group();
///       fsdp::barrier();
///     }
///     TEST(Processes, Barrier) {
///       ProcessRanks ranks("barrier_works", {.world_size = 2});
///       EXPECT_EQ(ranks.wait(0).exit_code, 0) << ranks.wait(0).output;
///     }

#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/child.h"
#include "launch/variables.h"
#include "support/disk_folder.h"

namespace fsdp::test {

struct ProcessRanksOptions {
  int world_size = 2;
  /// Time after which a rank that still runs is killed and counts as failed.
  std::chrono::milliseconds limit = std::chrono::seconds(60);
  /// Variables that are set for every rank, in addition to RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
  /// An empty value unsets the variable.
  std::map<std::string, std::string> environment = {};
  /// True if ranks are forks of this process, made while it has one thread. A fork takes a tenth of the time that
  /// the program takes to start.
  bool forks = false;
};

/// Describes how a rank ended.
struct RankResult {
  /// 0 if the case returned, 1 if it threw (`output` has the message), -1 if a signal ended the process.
  int exit_code = -1;
  int signal = 0;
  /// True if the rank was killed because its time limit was over.
  bool timed_out = false;
  /// Standard output and standard error of the rank.
  std::string output;
};

/// Starts the ranks. The destructor kills and reaps those that still run. Thread safety: only one thread may use it.
class ProcessRanks {
 public:
  ProcessRanks(const std::string& case_name, ProcessRanksOptions options);
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  /// Waits until the rank has ended, at most until its time limit.
  const RankResult& wait(int rank);
  /// Waits until the rank has printed `text`. Returns false if the rank ended, or the limit passed, before that.
  bool wait_for_output(int rank, const std::string& text);
  void kill(int rank, int signal = SIGKILL);
  int port() const { return port_.number(); }

 private:
  struct Rank {
    Child process;
    std::string output_path;
    RankResult result;
  };
  void start(int rank, const std::string& case_name);
  bool poll(Rank& rank);
  void read_output(Rank& rank);

  const ProcessRanksOptions options_;
  const std::chrono::steady_clock::time_point deadline_;
  const DiskFolder folder_;
  HeldPort port_;
  std::vector<Rank> ranks_;
};

/// PROCESS_CASE makes an object of this class; use the macro. Every case begins with the same random seed.
struct ProcessCase {
  ProcessCase(const std::string& name, std::function<void()> run);
};

/// Runs the case that the environment names, and returns its exit code, or -1 if the environment names none.
int run_process_case();

}  // namespace fsdp::test

#define PROCESS_CASE(name)                                                                         \
  static void process_case_##name();                                                               \
  static const ::fsdp::test::ProcessCase register_process_case_##name(#name, process_case_##name); \
  static void process_case_##name()
