#pragma once
/// \file
/// One trial: ranks as processes, of which one dies, stops or differs at a chosen place, and what became of them all.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fault_trials/training.h"

namespace fsdp::test {

enum class FaultKind : uint8_t {
  kNone,
  kKill,
  kShortStop,  ///< SIGSTOP, and on again within the timeout
  kLongStop,   ///< SIGSTOP, and on again when the others have ended
  kDivergence,
};

const char* name_of(FaultKind kind);

/// Where a rank's fault happens: when it passes the fault point for the `passage`-th time, counted from 1.
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

/// How a rank ended.
enum class Ending : uint8_t { kKilled, kFinished, kPeerLost, kMismatch, kOtherError, kHung };

struct RankReport {
  Ending ending = Ending::kHung;
  int lost_rank = -1;                       // of kPeerLost
  std::string message;                      // of the exception that ended it, or how it ended without one
  std::string noticed;                      // the Mismatch that it survived
  uint64_t hash = 0;                        // of kFinished
  std::chrono::milliseconds after_fault{};  // from the fault, or from the beginning, to the end
  std::map<std::string, int> passages;      // of its fault points
};

struct TrialReport {
  std::vector<RankReport> ranks;
  bool happened = false;               // the victim reached the place
  std::vector<std::string> leftovers;  // of the ranks, after all of them ended
};

/// Runs the trial. This process must have one thread.
TrialReport run(const Trial& trial);

/// What is wrong with the outcome; empty: nothing. `hash`: of an undisturbed training.
std::vector<std::string> judge(const Trial& trial, const TrialReport& report, uint64_t hash);

}  // namespace fsdp::test
