#pragma once
/// \file
/// The launchers of all nodes of a job decide which nodes run an attempt together, and how it ends.

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

/// Represents this launcher among the launchers of the job. Before each attempt the launchers meet, and node 0 decides
/// which of them take part. Launchers tell each other through the store when ranks fail and when all ranks are done. If
/// the job has one node, its launcher does none of this. If the store breaks or node 0 is silent for too long, the
/// other launchers treat this as a failure of node 0. Node 0 checks whether other launchers are silent: each look at
/// the store is a heartbeat.
class Nodes {
 public:
  /// Hosts the store or connects to it. Throws Exit as MeetingPoint does.
  Nodes(const Flags& flags, int local_ranks, Console& console, SignalQueue& signals);

  /// Waits until node 0 announces the next attempt in which this node takes part. No rank of the last attempt may still
  /// run on this node. The ranks of all attempts use the same store; the attempt's number in their keys keeps attempts
  /// apart. Throws Exit if too few nodes come or the job is over.
  void meet(SignalQueue& signals);

  /// The host of the store, which the ranks use too.
  const std::string& host() const { return meeting_point_.host(); }
  uint16_t port() const { return meeting_point_.port(); }
  int local_ranks() const { return local_ranks_; }

  // The following values belong to the current attempt.
  int attempt() const { return round_.attempt; }
  /// Number of failed attempts before this one.
  int failures() const { return round_.failures; }
  int node() const { return node_; }
  int count() const { return static_cast<int>(round_.members.size()); }
  int first_rank() const { return round_.first_rank(node_); }
  int world_size() const { return round_.world_size(); }

  /// True if the job can have only one node.
  bool is_alone() const { return range_.most == 1; }
  /// Tells the other nodes that a rank failed on this node.
  void tell_own_failure(const std::string& what);
  /// Returns why another node ended the attempt, or which node is silent; nullopt if the attempt goes on. The caller
  /// must call this about once a second, because each call is also a heartbeat of this node. A call waits at most 20 ms
  /// for the store. In node 0 it also ends the attempt if more nodes wait and the job has room for them.
  std::optional<AttemptEnd> end_elsewhere();
  /// Waits until the ranks of every node are done. Returns the reason if another node ends the attempt meanwhile.
  std::optional<AttemptEnd> wait_until_all_are_done(SignalQueue& signals);
  /// Tells the other nodes this node's reason, `here`, for the end of the attempt. Returns on all nodes the reason that
  /// a node told first.
  AttemptEnd agree_on_end(const AttemptEnd& here, SignalQueue& signals);

  /// Sends `value` to node 0. Returns in node 0 the values of all nodes in their order, and nothing in other nodes. Use
  /// each name only once in an attempt. Throws Exit if the attempt ends meanwhile.
  std::vector<std::string> tell_node_0(const std::string& name, const std::string& value, SignalQueue& signals);

  /// Tells the other launchers that this one ends. Node 0 also tells `problem`, the reason why the job failed, which is
  /// empty after success. The store ends with node 0, so node 0 waits up to 30 seconds for the other launchers to read
  /// it. Other nodes do not wait.
  void leave(const std::string& problem, SignalQueue& signals);

 private:
  using Clock = std::chrono::steady_clock;

  /// The part of the store's content that this node has to watch.
  struct News {
    int attempt;
    /// All launchers by number; filled only in node 0.
    std::vector<Sighting> launchers = {};
    std::optional<std::string> end = std::nullopt;
    int64_t done = 0;
    std::optional<std::string> round = std::nullopt;
    /// The reason why node 0 has ended the job; empty if the job succeeded.
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
  /// Number of failed attempts so far.
  int failures_ = 0;
  // The result of the last look at the store, which may be pending.
  std::future<News> look_;
  Patience silence_of_store_;
  bool store_is_lost_ = false;
  Attendance attendance_;
};

}  // namespace fsdprun
