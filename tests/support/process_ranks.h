#pragma once
/// \file
/// Ranks as processes of their own: for death, environment variables and process-wide state.
///
/// A case is what each rank runs. The test starts the same executable again, once per rank, with the case's name in the
/// environment, and looks at how the ranks ended:
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
  /// Any rank still running after this time is killed and counts as failed.
  std::chrono::milliseconds limit = std::chrono::seconds(60);
  /// Set for every rank, in addition to RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. An empty value
  /// unsets the variable.
  std::map<std::string, std::string> environment = {};
  /// Forks this process while it has one thread, which takes a tenth of the time that starting the program again takes.
  bool forks = false;
};

/// How a rank ended.
struct RankResult {
  /// 0: the case returned. 1: it threw, and the message is in `output`. -1: a signal ended it.
  int exit_code = -1;
  int signal = 0;
  /// The rank was killed because the limit was over.
  bool timed_out = false;
  /// Standard output and error.
  std::string output;
};

/// Starts the ranks; the destructor kills and reaps those still running. Thread safety: one thread.
class ProcessRanks {
 public:
  ProcessRanks(const std::string& case_name, ProcessRanksOptions options);
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  /// Waits for the rank to end, at most until the limit.
  const RankResult& wait(int rank);
  /// Waits until the rank has printed `text`; false if it ended or the limit passed before.
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

/// What PROCESS_CASE makes; use the macro. Every case begins with the same random seed.
struct ProcessCase {
  ProcessCase(const std::string& name, std::function<void()> run);
};

/// Runs the case named by the environment and returns its exit code; -1 if the environment names none.
int run_process_case();

}  // namespace fsdp::test

#define PROCESS_CASE(name)                                                                         \
  static void process_case_##name();                                                               \
  static const ::fsdp::test::ProcessCase register_process_case_##name(#name, process_case_##name); \
  static void process_case_##name()
