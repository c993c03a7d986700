#include "fault_trials/trial.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "launch/variables.h"

namespace fsdp::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStep{5};
// Time for ranks to find the lost rank after a timeout. Over Gloo, that rank has 5 s to answer the roll call.
constexpr milliseconds kAnswerTime{6000};

std::shared_ptr<SharedReport> make_report() {
  void* memory = mmap(nullptr, sizeof(SharedReport), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory for a report");
  return {static_cast<SharedReport*>(memory), [](SharedReport* report) { munmap(report, sizeof *report); }};
}

// Lists the things that processes may leave behind on a host: names of fsdp's abstract Unix sockets, and files in
// /dev/shm and in the folder for temporary files.
std::set<std::string> what_lies_about() {
  std::set<std::string> things;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    if (const size_t name = line.find("@fsdp"); name != std::string::npos) things.insert(line.substr(name));
  for (const auto& folder : {std::filesystem::path("/dev/shm"), std::filesystem::temp_directory_path()}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) things.insert(entry.path());
  }
  return things;
}

// Owns the processes of the ranks until all of them have ended.
class Ranks {
 public:
  Ranks(const Trial& trial, SharedReport& report) : trial_(trial), report_(report), begin_(Clock::now()) {
    for (int rank = 0; rank < trial.world_size; ++rank)
      processes_.push_back(start_rank(trial, rank, port_.number(), report));
    ended_.resize(processes_.size());
  }

  // Waits for the ranks, and completes the reports of those that did not write them.
  void watch() {
    while (!std::ranges::all_of(ended_, [](const auto& time) { return time.has_value(); })) {
      for (size_t rank = 0; rank < processes_.size(); ++rank)
        if (!ended_[rank] && processes_[rank].has_ended()) ended_[rank] = Clock::now();
      resume();
      if (Clock::now() > deadline()) break;
      std::this_thread::sleep_for(kStep);
    }
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      auto& its = report_.ranks[rank];
      if (ended_[rank])
        its.after_fault =
            std::chrono::duration_cast<milliseconds>(*ended_[rank] - (report_.happened() ? fault_time() : begin_));
      if (ended_[rank] && its.ending != Ending::kHung) continue;
      its.ending = ended_[rank] ? Ending::kKilled : Ending::kHung;
      if (ended_[rank]) its.message.set(processes_[rank].status()->describe());
    }
  }

 private:
  Clock::time_point fault_time() const { return Clock::time_point(Clock::duration(report_.fault_at_ns.load())); }

  // Resumes a stopped rank: after its time for a short stop, or when all other ranks have ended for a long one.
  void resume() {
    if (!report_.happened() || resumed_at_) return;
    bool is_time = trial_.kind == FaultKind::kShortStop && Clock::now() > fault_time() + trial_.stop;
    if (trial_.kind == FaultKind::kLongStop) {
      is_time = true;
      for (int rank = 0; rank < trial_.world_size; ++rank) is_time &= rank == trial_.victim || ended_[rank].has_value();
    }
    if (!is_time) return;
    processes_[trial_.victim].send(SIGCONT);
    resumed_at_ = Clock::now();
  }

  Clock::time_point deadline() const {
    const auto since = resumed_at_ ? *resumed_at_ : report_.happened() ? fault_time() : begin_;
    return since + 2 * trial_.timeout + kAnswerTime + milliseconds(20'000);
  }

  const Trial& trial_;
  SharedReport& report_;
  const Clock::time_point begin_;
  const HeldPort port_;
  std::vector<Child> processes_;
  std::vector<std::optional<Clock::time_point>> ended_;
  std::optional<Clock::time_point> resumed_at_;
};

// Returns true if the message names two ranks and what they ran, e.g. "rank 0 runs A; rank 1 runs B".
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
    for (int rank = 0; rank < trial_.world_size; ++rank) judge(rank, report_.shared->ranks[static_cast<size_t>(rank)]);
    for (const auto& thing : report_.leftovers) findings_.push_back("left behind: " + thing);
    return std::move(findings_);
  }

 private:
  void expect(bool holds, int rank, const std::string& what) {
    if (!holds) findings_.push_back(c10::str("rank ", rank, ' ', what));
  }

  void judge(int rank, const RankReport& its) {
    const auto message = its.message.string();
    expect(its.ending != Ending::kHung, rank, "hung");
    if (trial_.kind == FaultKind::kDeparture) return judge_departure(rank, its);
    if (its.ending == Ending::kFinished) expect(its.hash == hash_, rank, "finished with wrong numbers");
    if (trial_.kind == FaultKind::kDivergence) return judge_divergence(rank, its);
    const bool undisturbed = !report_.shared->happened() || trial_.kind == FaultKind::kShortStop;
    if (undisturbed) return expect(its.ending == Ending::kFinished, rank, "did not finish: " + message);
    rank == trial_.victim ? judge_victim(its) : judge_survivor(rank, its);
  }

  void judge_victim(const RankReport& its) {
    const auto message = its.message.string();
    if (trial_.kind == FaultKind::kKill)
      return expect(its.ending == Ending::kKilled && message == "was killed by SIGKILL", trial_.victim,
                    "was not killed by SIGKILL: " + message);
    // The victim was stopped for so long that the other ranks may have declared it lost.
    expect(its.ending == Ending::kFinished || its.ending == Ending::kPeerLost, trial_.victim,
           "ended in another way than expected: " + message);
  }

  // A survivor either needed nothing more from the victim, or it names the victim in time.
  void judge_survivor(int rank, const RankReport& its) {
    if (its.ending == Ending::kFinished) return;
    const auto message = its.message.string();
    const auto limit = trial_.timeout + kAnswerTime;
    expect(its.after_fault < limit, rank, c10::str("ended only after ", its.after_fault.count(), " ms"));
    // A rank may wait on one axis for a rank that waits on the other axis for the victim. Both give up at the same
    // time.
    const bool has_two_axes = trial_.has_stages && trial_.world_size == 4;
    if (has_two_axes && trial_.kind == FaultKind::kLongStop && its.ending == Ending::kMismatch)
      return expect(message.find("is alive but did not join") != std::string::npos, rank, "says: " + message);
    expect(its.ending == Ending::kPeerLost, rank, "did not throw PeerLost: " + message);
    expect(its.lost_rank == trial_.victim, rank, c10::str("names rank ", its.lost_rank, ": ", message));
    expect(message.find(c10::str("rank ", trial_.victim)) != std::string::npos, rank,
           "does not say which rank is lost: " + message);
  }

  void judge_divergence(int rank, const RankReport& its) {
    const bool in_set_up =
        trial_.divergence == Divergence::kOtherModel || trial_.divergence == Divergence::kOtherGroups;
    expect(its.ending == (in_set_up ? Ending::kMismatch : Ending::kFinished), rank,
           "ended in another way than expected: " + its.message.string());
    const auto message = in_set_up ? its.message.string() : its.noticed.string();
    if (trial_.divergence == Divergence::kExceptionAlone && rank == trial_.victim) return;
    expect(names_two_ranks(message, trial_.victim, trial_.world_size), rank,
           "does not name two ranks and their operations: " + message);
  }

  // The other ranks name the rank that left, or say where it failed or what it runs.
  void judge_departure(int rank, const RankReport& its) {
    if (rank == trial_.victim) return;
    const auto message = its.message.string();
    if (trial_.departure == Departure::kSkip)
      return expect(its.ending == Ending::kMismatch && names_two_ranks(message, trial_.victim, trial_.world_size), rank,
                    "does not name two ranks and their operations: " + message);
    const bool is_told = message.find(c10::str("rank ", trial_.victim, " failed in ")) != std::string::npos;
    expect((its.ending == Ending::kPeerLost && its.lost_rank == trial_.victim) ||
               (its.ending == Ending::kMismatch && is_told),
           rank, "does not name the rank that left: " + message);
  }

  const Trial& trial_;
  const TrialReport& report_;
  const uint64_t hash_;
  std::vector<std::string> findings_;
};

}  // namespace

const char* name_of(FaultKind kind) {
  constexpr std::array<const char*, 6> kNames{"none", "kill", "short stop", "long stop", "divergence", "departure"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Trial::describe() const {
  std::string text = c10::str(backend, ", ", world_size, " ranks, ", reshards ? "reshard" : "no reshard",
                              has_stages ? ", stages: " : ": ", name_of(kind), " of rank ", victim);
  if (kind == FaultKind::kDivergence) return text + ", " + name_of(divergence);
  if (kind == FaultKind::kDeparture) return text + ", " + name_of(departure);
  if (kind != FaultKind::kNone) text += c10::str(" at '", place.point, "' #", place.passage);
  if (kind == FaultKind::kShortStop) text += c10::str(" for ", stop.count(), " ms");
  return text;
}

TrialReport run(const Trial& trial) {
  const auto before = what_lies_about();
  TrialReport report{.shared = make_report(), .leftovers = {}};
  Ranks(trial, *report.shared).watch();
  for (const auto& thing : what_lies_about())
    if (!before.contains(thing)) report.leftovers.push_back(thing);
  return report;
}

std::vector<std::string> judge(const Trial& trial, const TrialReport& report, uint64_t hash) {
  return Judge(trial, report, hash).findings();
}

}  // namespace fsdp::test
