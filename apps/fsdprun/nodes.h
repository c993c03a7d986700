#pragma once
/// \file
/// The launchers of all nodes of a job: which of them run an attempt together, and how it ends.

#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "attendance.h"
#include "console.h"
#include "flags.h"
#include "meeting_point.h"
#include "patience.h"
#include "round.h"
#include "signals.h"

namespace fsdprun {

/// This launcher's place among those of the job. Before each attempt they meet, and node 0 says who takes part.
/// Launchers tell each other when ranks fail and when all are done; with one node there is nobody to tell. A lost store
/// is a failure of node 0; so is its silence, and node 0 sees to the silence of the others, which show that they are
/// there whenever they look.
class Nodes {
 public:
  /// Hosts the store or connects to it. Throws Exit, as MeetingPoint does.
  Nodes(const Flags& flags, int local_ranks, Console& console, SignalQueue& signals);

  /// Waits until the nodes of the next attempt are there, and this one among them. Call it when no rank of the last
  /// attempt is left here. The ranks of all attempts meet at the same address; they keep their keys apart by the
  /// attempt's number. Throws Exit if too few nodes come, or the job is over.
  void meet(SignalQueue& signals);

  /// Where the ranks meet too.
  const std::string& host() const { return meeting_point_.host(); }
  uint16_t port() const { return meeting_point_.port(); }
  int local_ranks() const { return local_ranks_; }

  // Of the attempt for which they met.
  int attempt() const { return round_.attempt; }
  /// How many attempts failed before it.
  int failures() const { return round_.failures; }
  int node() const { return node_; }
  int count() const { return static_cast<int>(round_.members.size()); }
  int first_rank() const { return round_.first_rank(node_); }
  int world_size() const { return round_.world_size(); }

  /// Whether no other node takes part, ever.
  bool is_alone() const { return range_.most == 1; }
  /// Tells the others that ranks failed here.
  void tell_own_failure(const std::string& what);
  /// Why the attempt is over, as another node told it, or who has fallen silent. Call every second or so: it also tells
  /// the others that this node is there. Waits for the store for a few milliseconds at most. In node 0 it ends the
  /// attempt when nodes wait for which there is room.
  std::optional<AttemptEnd> end_elsewhere();
  /// Waits until the ranks of every node are done. Returns what another node told if the attempt is void after all.
  std::optional<AttemptEnd> wait_until_all_are_done(SignalQueue& signals);
  /// Why the attempt is over, the same for all nodes: `here`, unless another reason was told before.
  AttemptEnd agree_on_end(const AttemptEnd& here, SignalQueue& signals);

  /// What every node tells, by node, in node 0; elsewhere nothing. Once for each name and attempt. Throws Exit if the
  /// attempt ends meanwhile.
  std::vector<std::string> tell_node_0(const std::string& name, const std::string& value, SignalQueue& signals);

  /// Says goodbye, and in node 0 why the job failed; empty: it did not. Node 0 waits a moment for those of the others
  /// that are there to read it: the store ends with it. The others do not wait.
  void leave(const std::string& problem, SignalQueue& signals);

 private:
  using Clock = std::chrono::steady_clock;

  /// What the store knows that this node has to know all the time.
  struct News {
    int attempt;
    /// By number; only for node 0.
    std::vector<Sighting> launchers = {};
    std::optional<std::string> end = std::nullopt;
    int64_t done = 0;
    std::optional<std::string> round = std::nullopt;
    /// Why node 0 has ended the job; empty: it is done.
    std::optional<std::string> over = std::nullopt;
  };

  std::string attempt_key(const std::string& name) const { return meeting_point_.key(name, round_.attempt); }
  auto look() const;
  void tell_end(const AttemptEnd& end);
  std::optional<AttemptEnd> end_seen_in(const News& news);
  Round gather(SignalQueue& signals);
  Round wait_for_round(SignalQueue& signals);
  void begin(Round round);
  std::string too_few(const std::vector<Candidate>& there) const;

  const NodeRange range_;
  const int local_ranks_;
  const bool are_numbered_by_arrival_;
  const std::chrono::seconds join_timeout_, last_call_timeout_;
  Console& console_;
  MeetingPoint meeting_point_;
  Round round_;
  int node_ = 0;
  /// Of the attempts that are over.
  int failures_ = 0;
  // The look that has not been answered yet, or not been taken notice of.
  std::future<News> look_;
  Patience silence_of_store_;
  bool store_is_lost_ = false;
  Attendance attendance_;
};

}  // namespace fsdprun
