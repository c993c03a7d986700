#pragma once
/// \file
/// A trial: ranks run as processes, one of them dies, stops or diverges at a chosen place, and a report says how all
/// ended.

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fault_trials/training.h"
#include "launch/child.h"

namespace fsdp::test {

enum class FaultKind : uint8_t {
  kNone,
  kKill,
  kShortStop,  ///< the rank gets SIGSTOP, and SIGCONT within the timeout
  kLongStop,   ///< the rank gets SIGSTOP, and SIGCONT when the others have ended
  kDivergence,
  kDeparture,
};

const char* name_of(FaultKind kind);

/// Place of a rank's fault: the fault occurs when the rank passes `point` for the `passage`-th time, counted from 1.
/// `passage` is 0 if there is no fault.
struct FaultPlace {
  std::string point;
  int passage = 0;
};

struct Trial {
  FaultKind kind = FaultKind::kNone;
  std::string backend = {};
  int world_size = 2;
  bool reshards = true;
  bool has_stages = false;
  int victim = 0;
  FaultPlace place = {};
  Divergence divergence = Divergence::kNone;
  Departure departure = Departure::kNone;
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds stop{};  // duration of a short stop

  std::string describe() const;
};

/// Says how a rank ended. It is kHung until the rank has ended.
enum class Ending : uint8_t { kHung, kKilled, kFinished, kPeerLost, kMismatch, kOtherError };

constexpr int kMostRanks = 8, kMostPoints = 64;

template <size_t kRoom>
struct Text {
  std::array<char, kRoom> characters;
  void set(std::string_view text) { characters[text.copy(characters.data(), kRoom - 1)] = '\0'; }
  std::string string() const { return characters.data(); }
};

/// Report of one rank, in memory that it shares with the process that started it. The memory begins as zeros.
struct RankReport {
  std::atomic<Ending> ending;  // written last, unless the rank is killed or hangs
  int lost_rank;               // set if `ending` is kPeerLost
  uint64_t hash;               // set if `ending` is kFinished
  Text<3000> message;          // message of the exception that ended the rank, or text on how it ended without one
  Text<3000> noticed;          // message of the Mismatch that the rank survived
  struct Point {
    Text<40> name;
    int passages;
  };
  std::array<Point, kMostPoints> points;  // not set if the rank was killed
  std::chrono::milliseconds after_fault;  // time from the fault, or from the beginning without one, to the rank's end
};

struct SharedReport {
  std::atomic<int64_t> fault_at_ns;  // time on the steady clock, or 0 if the victim did not reach the place
  std::array<RankReport, kMostRanks> ranks;
  bool happened() const { return fault_at_ns != 0; }
};

struct TrialReport {
  std::shared_ptr<SharedReport> shared;
  std::vector<std::string> leftovers;  // things that are left on the host after all ranks have ended
};

/// Forks a process that trains as one rank of a trial, meets its fault at the chosen place, and reports in `report` how
/// it ended.
Child start_rank(const Trial& trial, int rank, int port, SharedReport& report);

/// Trains with the backend "hierarchical", as the rank that the launcher's variables name. Prints "hash NUMBER" and,
/// one per line, how often the rank passed each fault point. HOST_FAULT is "rank", "launcher" or "link": when the rank
/// HOST_FAULT_RANK passes HOST_FAULT_POINT for the HOST_FAULT_PASSAGE-th time, it kills itself, kills its launcher, or
/// cuts its host's network. HOST_TIMEOUT_MS is the timeout of the process group. Returns the program's exit status.
int train_as_rank_of_a_host();

/// Runs the trial. The calling process must have one thread.
TrialReport run(const Trial& trial);

/// Returns what is wrong with the outcome, or an empty vector. `hash` is the hash of a training without a fault.
std::vector<std::string> judge(const Trial& trial, const TrialReport& report, uint64_t hash);

}  // namespace fsdp::test
