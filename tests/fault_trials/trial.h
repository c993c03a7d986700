#pragma once
/// \file
/// One trial: ranks as processes, of which one dies, stops or differs at a chosen place, and what became of them all.

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
  kShortStop,  ///< SIGSTOP, and on again within the timeout
  kLongStop,   ///< SIGSTOP, and on again when the others have ended
  kDivergence,
};

const char* name_of(FaultKind kind);

/// Where a rank's fault happens: when it passes the fault point for the `passage`-th time, counted from 1; 0: nowhere.
struct FaultPlace {
  std::string point;
  int passage = 0;
};

struct Trial {
  FaultKind kind = FaultKind::kNone;
  std::string backend = {};
  int world_size = 2;
  bool reshards = true;
  int victim = 0;
  FaultPlace place = {};
  Divergence divergence = Divergence::kNone;
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds stop{};  // of a short stop

  std::string describe() const;
};

/// How a rank ended. kHung stands until it has.
enum class Ending : uint8_t { kHung, kKilled, kFinished, kPeerLost, kMismatch, kOtherError };

constexpr int kMostRanks = 8, kMostPoints = 64;

template <size_t kRoom>
struct Text {
  std::array<char, kRoom> characters;
  void set(std::string_view text) { characters[text.copy(characters.data(), kRoom - 1)] = '\0'; }
  std::string string() const { return characters.data(); }
};

/// Lies in memory that the rank shares with the process that started it. Begins as zeros.
struct RankReport {
  std::atomic<Ending> ending;  // the rank writes it last, unless it is killed or hangs
  int lost_rank;               // of kPeerLost
  uint64_t hash;               // of kFinished
  Text<3000> message;          // of the exception that ended it, or how it ended without one
  Text<3000> noticed;          // the Mismatch that it survived
  struct Point {
    Text<40> name;
    int passages;
  };
  std::array<Point, kMostPoints> points;  // of one that was not killed
  std::chrono::milliseconds after_fault;  // from the fault, or from the beginning, to the end
};

struct SharedReport {
  std::atomic<int64_t> fault_at_ns;  // of the steady clock; 0: the victim did not reach the place
  std::array<RankReport, kMostRanks> ranks;
  bool happened() const { return fault_at_ns != 0; }
};

struct TrialReport {
  std::shared_ptr<SharedReport> shared;
  std::vector<std::string> leftovers;  // of the ranks, after all of them ended
};

/// Forks a rank of a trial, which trains, meets its fault where it passes the place, and says in `report` how it ended.
Child start_rank(const Trial& trial, int rank, int port, SharedReport& report);

/// Trains as the rank that the launcher's variables name, over the backend "hierarchical", and prints "hash NUMBER",
/// and how often it passed each fault point; a line for each. By the variables HOST_FAULT (rank, launcher or link),
/// HOST_FAULT_RANK, HOST_FAULT_POINT and HOST_FAULT_PASSAGE a rank loses itself, its launcher, or its host's network
/// where it passes the point so often. HOST_TIMEOUT_MS: of the process group. Returns the program's status.
int train_as_rank_of_a_host();

/// Runs the trial. This process must have one thread.
TrialReport run(const Trial& trial);

/// What is wrong with the outcome; empty: nothing. `hash`: of an undisturbed training.
std::vector<std::string> judge(const Trial& trial, const TrialReport& report, uint64_t hash);

}  // namespace fsdp::test
