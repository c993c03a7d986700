#pragma once
/// \file
/// Which launchers are there, as node 0 sees it.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "patience.h"
#include "round.h"

namespace fsdprun {

/// What the store has of one launcher.
struct Sighting {
  /// 0: it has not come yet.
  int local_ranks = 0;
  /// How often it has looked at the store.
  int64_t beats = 0;
  /// No rank of the last attempt runs there any more.
  bool is_ready = false;
  /// It said goodbye.
  bool has_left = false;
};

/// Launchers whose number of looks does not rise for the timeout are lost, until it does.
class Attendance {
 public:
  explicit Attendance(std::chrono::seconds timeout) : timeout_(timeout) {}

  /// By number, those that never came included. Call often: it counts the silence.
  void note(const std::vector<Sighting>& launchers);
  /// Those that are there. One that did not run in `last` is ready at once.
  std::vector<Candidate> candidates(const Round& last) const;
  /// Why a member of `round` is not there any more; nullopt: all are.
  std::optional<std::string> loss_in(const Round& round) const;

 private:
  struct Launcher {
    Sighting sighting;
    Patience silence;
    bool is_silent = false;
  };

  std::chrono::seconds timeout_;
  std::vector<Launcher> launchers_;
};

/// What is said of the launcher of node `node` when it is.
std::string silent(int node, std::chrono::seconds timeout);

}  // namespace fsdprun
