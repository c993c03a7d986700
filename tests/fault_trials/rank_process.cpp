#include "fault_trials/rank_process.h"

#include <fsdp/error.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "comm/core/fault_point.h"
#include "support/quiet_child.h"

namespace fsdp::test {
namespace {

// What the hook of this process needs to know.
struct Fate {
  SharedReport* report = nullptr;
  SharedRank* rank = nullptr;
  const Trial* trial = nullptr;
  bool is_victim = false;
  std::mutex mutex;  // points may be passed in several threads
} fate;

int count_passage(const char* place) {
  for (auto& point : fate.rank->points) {
    if (point.name[0] == '\0') std::strncpy(point.name.data(), place, point.name.size() - 1);
    if (std::strcmp(point.name.data(), place) == 0) return ++point.passages;
  }
  return 0;
}

void pass_fault_point(const char* place) {
  const std::lock_guard lock(fate.mutex);
  const int passage = count_passage(place);
  if (!fate.is_victim || fate.trial->place.point != place || fate.trial->place.passage != passage) return;
  fate.report->fault_at_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  raise(fate.trial->kind == FaultKind::kKill ? SIGKILL : SIGSTOP);
}

void end(Ending ending, std::string_view message, int lost_rank = -1) {
  fate.rank->ending = static_cast<uint8_t>(ending);
  fate.rank->lost_rank = lost_rank;
  fate.rank->message.set(message);
}

void run_rank(const Trial& trial, int rank, int port) {
  const TrainingPlan plan{trial.backend, rank,           trial.world_size, port,
                          trial.timeout, trial.reshards, trial.divergence, trial.victim};
  try {
    fate.rank->hash = train(plan, [](const std::string& message) { fate.rank->noticed.set(message); });
    end(Ending::kFinished, "");
  } catch (const PeerLost& error) {
    end(Ending::kPeerLost, error.what_without_backtrace(), error.rank());
  } catch (const Mismatch& error) {
    end(Ending::kMismatch, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    end(Ending::kOtherError, error.what_without_backtrace());
  } catch (const std::exception& error) {
    end(Ending::kOtherError, error.what());
  }
  fate.rank->has_ended = 1;
}

}  // namespace

Child start_rank(const Trial& trial, int rank, int port, SharedReport& report) {
  return start_quiet_child([&] {
    fate.report = &report;
    fate.rank = &report.ranks[rank];
    fate.trial = &trial;
    fate.is_victim = rank == trial.victim && trial.kind != FaultKind::kDivergence && trial.kind != FaultKind::kNone;
    on_fault_point = pass_fault_point;
    run_rank(trial, rank, port);
  });
}

}  // namespace fsdp::test
