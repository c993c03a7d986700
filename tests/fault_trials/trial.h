#pragma once
/// \file
/// One trial: ranks as processes, one of which dies, stops or diverges at a chosen place, and how all of them ended.

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
  kShortStop,  ///< SIGSTOP, then SIGCONT within the timeout
  kLongStop,   ///< SIGSTOP, then SIGCONT when the others have ended
  kDivergence,
  kDeparture,
};

const char* name_of(FaultKind kind);

/// Where a rank's fault happens: at its `passage`-th passage of the fault point, counted from 1; 0: nowhere.
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
  std::chrono::milliseconds stop{};  // how long a short stop lasts

  std::string describe() const;
};

/// How a rank ended; kHung until it has.
enum class Ending : uint8_t { kHung, kKilled, kFinished, kPeerLost, kMismatch, kOtherError };

constexpr int kMostRanks = 8, kMostPoints = 64;

template <size_t kRoom>
struct Text {
  std::array<char, kRoom> characters;
  void set(std::string_view text) { characters[text.copy(characters.data(), kRoom - 1)] = '\0'; }
  std::string string() const { return characters.data(); }
};

/// Lies in memory that the rank shares with the process that started it, and begins as zeros.
struct RankReport {
  std::atomic<Ending> ending;  // the rank writes it last, unless it is killed or hangs
  int lost_rank;               // if kPeerLost
  uint64_t hash;               // if kFinished
  Text<3000> message;          // of the exception that ended it, or how it ended without one
  Text<3000> noticed;          // the Mismatch that it survived
  struct Point {
    Text<40> name;
    int passages;
  };
  std::array<Point, kMostPoints> points;  // unless it was killed
  std::chrono::milliseconds after_fault;  // from the fault, or else from the beginning, to the end
};

struct SharedReport {
  std::atomic<int64_t> fault_at_ns;  // of the steady clock; 0: the victim did not reach the place
  std::array<RankReport, kMostRanks> ranks;
  bool happened() const { return fault_at_ns != 0; }
};

struct TrialReport {
  std::shared_ptr<SharedReport> shared;
  std::vector<std::string> leftovers;  // what the ranks left after all of them had ended
};

/// Forks a rank of a trial. It trains, meets its fault at the chosen place, and says in `report` how it ended.
Child start_rank(const Trial& trial, int rank, int port, SharedReport& report);

/// Trains as the rank that the launcher's variables name, over the backend "hierarchical". Prints "hash NUMBER" and how
/// often it passed each fault point, one line for each. If HOST_FAULT is "rank", "launcher" or "link", the rank
/// HOST_FAULT_RANK loses itself, its launcher or its host's network at its HOST_FAULT_PASSAGE-th passage of
/// HOST_FAULT_POINT. HOST_TIMEOUT_MS is the process group's timeout. Returns the program's exit status.
int train_as_rank_of_a_host();

/// Runs the trial. This process must have one thread.
TrialReport run(const Trial& trial);

/// What is wrong with the outcome; empty if nothing is. `hash` is that of an undisturbed training.
std::vector<std::string> judge(const Trial& trial, const TrialReport& report, uint64_t hash);

}  // namespace fsdp::test
