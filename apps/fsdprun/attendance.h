#pragma once
/// \file
/// Tracks which launchers take part in the job. Node 0 uses it.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "patience.h"
#include "round.h"

namespace fsdprun {

/// What the store knows about one launcher.
struct Sighting {
  /// Number of ranks on the launcher's node; 0 if the launcher has not come yet.
  int local_ranks = 0;
  /// Number of times that the launcher has looked at the store.
  int64_t beats = 0;
  /// True if no rank of the last attempt still runs on that node.
  bool is_ready = false;
  /// True if the launcher has announced its end.
  bool has_left = false;
};

/// Decides which launchers are lost: those whose `beats` have not risen for the timeout.
class Attendance {
 public:
  explicit Attendance(std::chrono::seconds timeout) : timeout_(timeout) {}

  /// Takes note of all launchers in the order of their numbers, including those that have not come. The caller must
  /// call this often, because only calls measure how long a launcher has been silent.
  void note(const std::vector<Sighting>& launchers);
  /// Returns the launchers that have come and are not lost. Those that did not take part in `last` count as ready.
  std::vector<Candidate> candidates(const Round& last) const;
  /// Returns why a member of `round` is lost, or nullopt if no member is lost.
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

/// Returns the message for a launcher of node `node` that has been silent for `timeout`.
std::string silent(int node, std::chrono::seconds timeout);

}  // namespace fsdprun
