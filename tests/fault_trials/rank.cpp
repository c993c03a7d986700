// Runs one rank of a trial.

#include <fsdp/error.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>

#include "comm/core/fault_point.h"
#include "fault_trials/trial.h"
#include "support/quiet_child.h"

namespace fsdp::test {
namespace {

// State for this process's hook of fault points.
struct Fate {
  FaultPlace place;
  std::function<void()> meet;
  std::map<std::string, int> passages;
  std::mutex mutex;  // guards the counters, because several threads may pass fault points
} fate;

void pass_fault_point(const char* point) {
  const std::lock_guard lock(fate.mutex);
  if (++fate.passages[point] == fate.place.passage && fate.place.point == point) fate.meet();
}

// Returns the message of the exception that is being handled.
std::string message_of_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

void run_rank(const Trial& trial, int rank, int port, RankReport& report) {
  const TrainingPlan plan{trial.backend,   rank,           trial.world_size, port,
                          trial.timeout,   trial.reshards, trial.has_stages, trial.divergence,
                          trial.departure, trial.victim};
  Ending ending = Ending::kOtherError;
  try {
    report.hash = train(plan, [&](const std::string& message) { report.noticed.set(message); });
    ending = Ending::kFinished;
  } catch (const PeerLost& error) {
    ending = Ending::kPeerLost;
    report.lost_rank = error.rank();
    report.message.set(message_of_exception());
  } catch (const Mismatch&) {
    ending = Ending::kMismatch;
    report.message.set(message_of_exception());
  } catch (const std::exception&) {
    report.message.set(message_of_exception());
  }
  const std::lock_guard lock(fate.mutex);
  for (auto point = report.points.begin(); const auto& [name, passages] : fate.passages) {
    if (point == report.points.end()) break;
    point->name.set(name);
    (point++)->passages = passages;
  }
  report.ending = ending;
}

std::string variable_of_host(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}
int number_of_host(const char* name) { return std::atoi(variable_of_host(name).c_str()); }

void meet_fault_of_host() {
  const auto fault = variable_of_host("HOST_FAULT");
  std::cout << "lost here" << std::endl;
  if (fault == "rank") raise(SIGKILL);
  if (fault == "launcher") kill(getppid(), SIGKILL);
  if (fault == "link" && std::system("ip link set wire down") != 0) std::cout << "the link stays up" << std::endl;
}

}  // namespace

Child start_rank(const Trial& trial, int rank, int port, SharedReport& report) {
  return start_quiet_child([&] {
    if (rank == trial.victim) fate.place = trial.place;
    fate.meet = [&] {
      report.fault_at_ns = std::chrono::steady_clock::now().time_since_epoch().count();
      raise(trial.kind == FaultKind::kKill ? SIGKILL : SIGSTOP);
    };
    on_fault_point = pass_fault_point;
    run_rank(trial, rank, port, report.ranks[rank]);
  });
}

int train_as_rank_of_a_host() {
  if (number_of_host("RANK") == number_of_host("HOST_FAULT_RANK"))
    fate.place = {variable_of_host("HOST_FAULT_POINT"), number_of_host("HOST_FAULT_PASSAGE")};
  fate.meet = meet_fault_of_host;
  on_fault_point = pass_fault_point;
  try {
    const auto hash = train({.backend = "hierarchical",
                             .rank = number_of_host("RANK"),
                             .world_size = number_of_host("WORLD_SIZE"),
                             .timeout = std::chrono::milliseconds(number_of_host("HOST_TIMEOUT_MS"))},
                            [](const std::string&) {});
    const std::lock_guard lock(fate.mutex);
    for (const auto& [point, passages] : fate.passages) std::cout << "passed " << passages << " " << point << '\n';
    std::cout << "hash " << hash << std::endl;
    return 0;
  } catch (const std::exception&) {
    std::cout << message_of_exception() << std::endl;
  }
  return 1;
}

}  // namespace fsdp::test
