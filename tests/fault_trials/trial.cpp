#include "fault_trials/trial.h"

#include <c10/util/StringUtil.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include "launch/child.h"
#include "launch/variables.h"
#include "fault_trials/leftovers.h"
#include "fault_trials/rank_process.h"

namespace fsdp::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStep{5};
// A lost rank is sought for this long after a timeout: over Gloo it gets 5 s to answer the roll call.
constexpr milliseconds kAnswerTime{6000};

struct Unmap {
  void operator()(SharedReport* report) const { munmap(report, sizeof(SharedReport)); }
};

std::unique_ptr<SharedReport, Unmap> make_report() {
  void* memory = mmap(nullptr, sizeof(SharedReport), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory for a report");
  return std::unique_ptr<SharedReport, Unmap>(static_cast<SharedReport*>(memory));
}

// The ranks' processes, until all of them have ended.
class Ranks {
 public:
  explicit Ranks(const Trial& trial) : trial_(trial), report_(make_report()), begin_(Clock::now()) {
    for (int rank = 0; rank < trial.world_size; ++rank) {
      processes_.push_back(start_rank(trial, rank, port_.number(), *report_));
      ended_.push_back({});
    }
  }

  TrialReport watch() {
    while (!all_ended()) {
      collect();
      resume();
      if (Clock::now() > deadline()) break;
      std::this_thread::sleep_for(kStep);
    }
    return report();
  }

 private:
  bool has_ended(int rank) const { return ended_[static_cast<size_t>(rank)].time_since_epoch().count() != 0; }
  bool all_ended() const {
    return std::all_of(ended_.begin(), ended_.end(), [](auto time) { return time.time_since_epoch().count() != 0; });
  }
  bool happened() const { return report_->fault_at_ns.load() != 0; }
  Clock::time_point fault_time() const { return Clock::time_point(Clock::duration(report_->fault_at_ns.load())); }

  void collect() {
    for (int rank = 0; rank < trial_.world_size; ++rank)
      if (!has_ended(rank) && processes_[rank].has_ended()) ended_[rank] = Clock::now();
  }

  // A stopped rank goes on: after its time, or when the others have ended.
  void resume() {
    if (!happened() || has_resumed_) return;
    if (trial_.kind != FaultKind::kShortStop && trial_.kind != FaultKind::kLongStop) return;
    bool is_time = trial_.kind == FaultKind::kShortStop && Clock::now() > fault_time() + trial_.stop;
    if (trial_.kind == FaultKind::kLongStop) {
      is_time = true;
      for (int rank = 0; rank < trial_.world_size; ++rank) is_time &= rank == trial_.victim || has_ended(rank);
    }
    if (!is_time) return;
    processes_[trial_.victim].send(SIGCONT);
    has_resumed_ = true;
    resumed_at_ = Clock::now();
  }

  Clock::time_point deadline() const {
    const auto since = has_resumed_ ? resumed_at_ : happened() ? fault_time() : begin_;
    return since + 2 * trial_.timeout + kAnswerTime + milliseconds(20'000);
  }

  TrialReport report() {
    TrialReport result;
    result.happened = happened();
    for (int rank = 0; rank < trial_.world_size; ++rank) {
      const auto& shared = report_->ranks[rank];
      RankReport of_rank;
      if (has_ended(rank)) {
        const auto since = result.happened ? fault_time() : begin_;
        of_rank.after_fault = std::chrono::duration_cast<milliseconds>(ended_[rank] - since);
        of_rank.ending = shared.has_ended != 0 ? static_cast<Ending>(shared.ending) : Ending::kKilled;
        of_rank.lost_rank = shared.lost_rank;
      }
      of_rank.hash = shared.hash;
      of_rank.message =
          of_rank.ending == Ending::kKilled ? processes_[rank].status()->describe() : shared.message.characters.data();
      of_rank.noticed = shared.noticed.characters.data();
      for (const auto& point : shared.points)
        if (point.passages > 0) of_rank.passages[point.name.data()] = point.passages;
      result.ranks.push_back(std::move(of_rank));
    }
    return result;
  }

  const Trial& trial_;
  std::unique_ptr<SharedReport, Unmap> report_;
  const Clock::time_point begin_;
  const HeldPort port_;
  std::vector<Child> processes_;
  std::vector<Clock::time_point> ended_;
  bool has_resumed_ = false;
  Clock::time_point resumed_at_;
};

// Both ranks and what they ran, e.g. "rank 0 runs A; rank 1 runs B".
bool names_two_ranks(const std::string& message, int victim, int world_size) {
  const auto names = [&](int rank) {
    return message.find(c10::str("rank ", rank, " runs ")) != std::string::npos ||
           message.find(c10::str("rank ", rank, ": ")) != std::string::npos ||
           message.find(c10::str("rank ", rank, " starts over")) != std::string::npos;
  };
  int others = 0;
  for (int rank = 0; rank < world_size; ++rank) others += rank != victim && names(rank);
  return names(victim) && others > 0;
}

class Judge {
 public:
  Judge(const Trial& trial, const TrialReport& report, uint64_t hash) : trial_(trial), report_(report), hash_(hash) {}

  std::vector<std::string> findings() {
    for (int rank = 0; rank < trial_.world_size; ++rank) judge(rank, report_.ranks[static_cast<size_t>(rank)]);
    for (const auto& thing : report_.leftovers) findings_.push_back("left behind: " + thing);
    return std::move(findings_);
  }

 private:
  void expect(bool holds, int rank, const std::string& what) {
    if (!holds) findings_.push_back(c10::str("rank ", rank, ' ', what));
  }

  void judge(int rank, const RankReport& its) {
    expect(its.ending != Ending::kHung, rank, "hung");
    if (its.ending == Ending::kFinished) expect(its.hash == hash_, rank, "finished with wrong numbers");
    if (trial_.kind == FaultKind::kDivergence) return judge_divergence(rank, its);
    const bool undisturbed = !report_.happened || trial_.kind == FaultKind::kShortStop;
    if (undisturbed) return expect(its.ending == Ending::kFinished, rank, "did not finish: " + its.message);
    rank == trial_.victim ? judge_victim(its) : judge_survivor(rank, its);
  }

  void judge_victim(const RankReport& its) {
    if (trial_.kind == FaultKind::kKill)
      return expect(its.ending == Ending::kKilled && its.message == "was killed by SIGKILL", trial_.victim,
                    "lived on, or ended otherwise: " + its.message);
    // It was stopped, for so long that the others gave it up.
    expect(its.ending == Ending::kFinished || its.ending == Ending::kPeerLost, trial_.victim,
           "ended otherwise: " + its.message);
  }

  // It needed the victim no more, or it names it in time.
  void judge_survivor(int rank, const RankReport& its) {
    if (its.ending == Ending::kFinished) return;
    expect(its.ending == Ending::kPeerLost, rank, "did not throw PeerLost: " + its.message);
    expect(its.lost_rank == trial_.victim, rank, c10::str("names rank ", its.lost_rank, ": ", its.message));
    expect(its.message.find(c10::str("rank ", trial_.victim)) != std::string::npos, rank,
           "does not say which rank is lost: " + its.message);
    const auto limit = trial_.timeout + kAnswerTime;
    expect(its.after_fault < limit, rank, c10::str("needed ", its.after_fault.count(), " ms"));
  }

  void judge_divergence(int rank, const RankReport& its) {
    const bool in_set_up =
        trial_.divergence == Divergence::kOtherModel || trial_.divergence == Divergence::kOtherGroups;
    expect(its.ending == (in_set_up ? Ending::kMismatch : Ending::kFinished), rank, "ended otherwise: " + its.message);
    const auto& message = in_set_up ? its.message : its.noticed;
    if (trial_.divergence == Divergence::kExceptionAlone && rank == trial_.victim) return;
    expect(names_two_ranks(message, trial_.victim, trial_.world_size), rank,
           "does not name two ranks and their operations: " + message);
  }

  const Trial& trial_;
  const TrialReport& report_;
  const uint64_t hash_;
  std::vector<std::string> findings_;
};

}  // namespace

const char* name_of(FaultKind kind) {
  constexpr std::array<const char*, 5> kNames{"none", "kill", "short stop", "long stop", "divergence"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Trial::describe() const {
  std::string text = c10::str(backend, ", ", world_size, " ranks, ", reshards ? "reshard" : "no reshard", ": ",
                              name_of(kind), " of rank ", victim);
  if (kind == FaultKind::kDivergence) return text + ", " + name_of(divergence);
  if (kind != FaultKind::kNone) text += c10::str(" at '", place.point, "' #", place.passage);
  if (kind == FaultKind::kShortStop) text += c10::str(" for ", stop.count(), " ms");
  return text;
}

TrialReport run(const Trial& trial) {
  const auto before = what_lies_about();
  auto report = Ranks(trial).watch();
  for (const auto& thing : what_lies_about())
    if (!before.contains(thing)) report.leftovers.push_back(thing);
  return report;
}

std::vector<std::string> judge(const Trial& trial, const TrialReport& report, uint64_t hash) {
  return Judge(trial, report, hash).findings();
}

}  // namespace fsdp::test
