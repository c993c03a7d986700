// Kills, stops or misleads one rank of a training job at random places, and judges how all ranks end. The same seed
// gives the same trials.

#include <ATen/Parallel.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <torch/types.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <map>
#include <random>

#include "fault_trials/trial.h"
#include "support/disk_folder.h"

namespace fsdp::test {
namespace {

struct Options {
  uint64_t seed = 1;
  int kills = 10, stops = 5, mismatches = 10, departures = 8;
  int timeout_ms = 3000;
  std::vector<std::string> backends{"shm", "gloo", "hierarchical"};
  std::vector<int> world_sizes{2, 3, 4};
  std::vector<std::string> points;
  int only = 0;
  bool has_stages = false;
  bool verbose = false;
};

// Runs a training job without a fault, and records its result and how often each rank passes each fault point.
class Model {
 public:
  explicit Model(Trial trial) {
    trial.kind = FaultKind::kNone;
    trial.place = {};
    trial.divergence = Divergence::kNone;
    trial.departure = Departure::kNone;
    report_ = run(trial);
    const auto findings = judge(trial, report_, hash());
    TORCH_CHECK(findings.empty() && hash() != 0, trial.describe(), ": ", findings.empty() ? "" : findings.front());
  }
  uint64_t hash() const { return report_.shared->ranks[0].hash; }
  // Draws a fault point of `points`, or of all points if `points` is empty, and the passage at which the fault occurs.
  FaultPlace draw_place(int rank, const std::vector<std::string>& points, std::mt19937_64& random) const {
    std::vector<RankReport::Point> passed;
    for (const auto& point : report_.shared->ranks[static_cast<size_t>(rank)].points)
      if (point.passages > 0 && (points.empty() || std::ranges::find(points, point.name.string()) != points.end()))
        passed.push_back(point);
    TORCH_CHECK(!passed.empty(), "rank ", rank, " passes none of the points");
    const auto& point = passed[std::uniform_int_distribution<size_t>(0, passed.size() - 1)(random)];
    return {point.name.string(), std::uniform_int_distribution<int>(1, point.passages)(random)};
  }

 private:
  TrialReport report_;
};

class Trials {
 public:
  explicit Trials(const Options& options) : options_(options), random_(options.seed) {}

  // Returns true if no trial failed and nearly all faults occurred. A few may not occur, because the number of times
  // that a rank passes a point varies.
  bool run_all() {
    for (int i = 0; i < options_.kills; ++i) run_one(draw(FaultKind::kKill));
    for (int i = 0; i < options_.stops; ++i) run_one(draw(i % 2 == 0 ? FaultKind::kShortStop : FaultKind::kLongStop));
    for (int i = 0; i < options_.mismatches; ++i)
      run_one(draw(FaultKind::kDivergence, static_cast<Divergence>(1 + i % (kDivergences - 1))));
    for (int i = 0; i < options_.departures; ++i) {
      auto trial = draw(FaultKind::kDeparture);
      // kThrowInStage is the last departure, and needs stages.
      trial.departure = static_cast<Departure>(1 + i % (kDepartures - (options_.has_stages ? 1 : 2)));
      run_one(trial);
    }
    print_summary();
    return failed_ == 0 && missed_ <= number_ / 10;
  }

 private:
  struct Count {
    int trials = 0, reached = 0, failed = 0;
    std::chrono::milliseconds slowest{};
  };

  int draw(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(draw(0, static_cast<int>(from.size()) - 1))];
  }

  const Model& model_of(const Trial& trial) {
    const auto key = std::tuple(trial.backend, trial.world_size, trial.reshards);
    if (const auto found = models_.find(key); found != models_.end()) return found->second;
    const auto& model = models_.emplace(key, trial).first->second;
    const auto by = std::tuple(trial.world_size, trial.backend == "hierarchical", trial.has_stages && trial.reshards);
    TORCH_CHECK(hashes_.emplace(by, model.hash()).first->second == model.hash(), trial.describe(),
                ": the trained parameters differ from those over another backend");
    return model;
  }

  Trial draw(FaultKind kind, Divergence divergence = Divergence::kNone) {
    Trial trial{.kind = kind, .divergence = divergence, .timeout = std::chrono::milliseconds(options_.timeout_ms)};
    trial.backend = pick(options_.backends);
    trial.world_size = pick(options_.world_sizes);
    trial.reshards = draw(0, 1) == 1;
    trial.has_stages = options_.has_stages;
    trial.victim = draw(0, trial.world_size - 1);
    if (kind == FaultKind::kDivergence || kind == FaultKind::kDeparture) return trial;
    trial.place = model_of(trial).draw_place(trial.victim, options_.points, random_);
    trial.stop = std::chrono::milliseconds(draw(1, options_.timeout_ms / 2));
    return trial;
  }

  void run_one(const Trial& trial) {
    ++number_;
    if (options_.only != 0 && options_.only != number_) return;
    const uint64_t hash = model_of(trial).hash();
    const auto report = run(trial);
    const auto findings = judge(trial, report, hash);
    const bool happened =
        report.shared->happened() || trial.kind == FaultKind::kDivergence || trial.kind == FaultKind::kDeparture;
    auto& count = counts_[{name_of(trial.kind), trial.backend}];
    ++count.trials;
    count.reached += happened;
    count.failed += !findings.empty();
    missed_ += !happened;
    for (int rank = 0; rank < trial.world_size; ++rank)
      if (rank != trial.victim) count.slowest = std::max(count.slowest, report.shared->ranks[rank].after_fault);
    failed_ += !findings.empty();
    if (options_.verbose || !findings.empty())
      std::cout << (findings.empty() ? "ok   " : "WRONG ") << number_ << ' ' << trial.describe() << std::endl;
    for (const auto& finding : findings) std::cout << "      " << finding << std::endl;
  }

  void print_summary() const {
    std::cout << std::left << std::setw(12) << "fault" << std::setw(14) << "backend" << std::setw(8) << "trials"
              << std::setw(12) << "took place" << std::setw(8) << "wrong" << "slowest survivor\n";
    for (const auto& [key, count] : counts_)
      std::cout << std::setw(12) << key.first << std::setw(14) << key.second << std::setw(8) << count.trials
                << std::setw(12) << count.reached << std::setw(8) << count.failed << count.slowest.count() << " ms\n";
    std::cout << "seed " << options_.seed << ": " << failed_ << " wrong (a hang, a wrong number, another error, "
              << "something left behind), " << missed_ << " did not take place (one in ten is normal)" << std::endl;
  }

  const Options options_;
  std::mt19937_64 random_;
  std::map<std::tuple<std::string, int, bool>, Model> models_;
  // Hashes that all backends share: by the number of ranks, by whether sums are taken in the order of hosts, and by the
  // axis of the stages.
  std::map<std::tuple<int, bool, bool>, uint64_t> hashes_;
  std::map<std::pair<std::string, std::string>, Count> counts_;
  int failed_ = 0, missed_ = 0, number_ = 0;
};

// Moves this process to a network namespace of its own, so that sockets of other programs do not count as left behind.
// Only root can do so; for other users, sockets that other programs open during a trial do count.
void take_own_network() {
  if (unshare(CLONE_NEWNET) != 0) return;
  const int any = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq loopback{};
  std::string("lo").copy(loopback.ifr_name, IFNAMSIZ - 1);
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool is_up = ioctl(any, SIOCSIFFLAGS, &loopback) == 0;
  close(any);
  TORCH_CHECK(is_up, "the loopback interface of a network of its own does not come up");
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Kills, stops or misleads a rank of a training at random places, and judges how all ranks end.");
  app.add_option("--seed", options.seed, "seed of the choice of trials")->capture_default_str();
  app.add_option("--kills", options.kills, "trials in which a rank is killed")->capture_default_str();
  app.add_option("--stops", options.stops, "trials in which a rank is stopped, for ever in every second one")
      ->capture_default_str();
  app.add_option("--mismatches", options.mismatches, "trials in which one rank runs something else, all kinds in turn")
      ->capture_default_str();
  app.add_option("--departures", options.departures,
                 "trials in which a rank throws, returns, exits or leaves a step out, all of these in turn")
      ->capture_default_str();
  app.add_option("--timeout-ms", options.timeout_ms, "timeout of the process groups")->capture_default_str();
  app.add_option("--backends", options.backends, "shm, gloo, hierarchical")->delimiter(',')->capture_default_str();
  app.add_option("--worlds", options.world_sizes, "numbers of ranks")->delimiter(',')->capture_default_str();
  app.add_option("--points", options.points, "fault points, e.g. 'joining,joined'; all by default")->delimiter(',');
  app.add_flag("--stages", options.has_stages, "let the training run a pipeline too");
  app.add_option("--only", options.only, "run only the trial with this number");
  app.add_flag("--verbose", options.verbose, "print a line for each trial, not only for those that went wrong");
  bool as_rank = false;
  app.add_flag("--as-rank", as_rank, "be a rank of host_faults_test.py instead; see trial.h");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  if (as_rank) return train_as_rank_of_a_host();
  const DiskFolder folder;  // used by this program only, so every file that is left there comes from its ranks
  setenv("TMPDIR", folder.path().c_str(), /*overwrite=*/1);
  take_own_network();
  return Trials(options).run_all() ? 0 : 1;
}

}  // namespace
}  // namespace fsdp::test

int main(int argc, char** argv) { return fsdp::test::main(argc, argv); }
