#pragma once
/// \file
/// Runs all ranks of this node, from their start until the last one has ended.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/failure/verdict.h"
#include "flags.h"
#include "launch/ending.h"
#include "log_files.h"
#include "nodes.h"
#include "orphan_guard.h"
#include "rank.h"
#include "signals.h"

namespace fsdprun {

/// The objects that an attempt uses but does not own.
struct AttemptContext {
  const Flags& flags;
  const std::string& program;
  Nodes& nodes;
  const LogFiles& files;
  const OrphanGuard& guard;
  SignalQueue& signals;
  Console& console;
};

struct AttemptResult {
  /// The local rank whose failure came first. If the ranks blame a rank, it is that one; otherwise it is the one that
  /// ended first.
  std::optional<int> failed;
  /// The reason why another node ended the attempt, if that came first.
  std::optional<AttemptEnd> ended_elsewhere;
  /// True if a signal asked the launcher to end.
  bool was_asked_to_end = false;

  bool is_success() const { return !failed && !ended_elsewhere; }
};

/// Starts the ranks and watches them. When one fails, the other ranks first get the time of --peer-grace to notice the
/// failure and report it. Then they get SIGTERM, and SIGKILL after the shutdown timeout. The destructor kills every
/// process that a rank started and that is still left. It prints the numbers of processes that it cannot kill.
class Attempt {
 public:
  explicit Attempt(AttemptContext context);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  AttemptResult run();
  const std::vector<Rank>& ranks() const { return ranks_; }

 private:
  using Clock = fsdp::Ending::Clock;

  void start(int local_rank);
  bool writes_through_pipes() const;
  RankStream stream(Console::Stream which, fsdp::Descriptor pipe, const Rank& rank);
  bool any_running() const;
  void wait_for_news();
  void handle_signals();
  void handle_request_to_end(int signal);
  void reap();
  void finish(Rank& rank);
  void give_up();
  void note_failures(const std::vector<Rank*>& ended);
  void find_first_failed();
  void check_other_nodes();
  void send_to_all(int signal) const;

  AttemptContext context_;
  const fsdp::Descriptor blame_board_ = fsdp::make_blame_board();
  std::vector<Rank> ranks_;
  AttemptResult result_;
  Clock::time_point asked_at_{};  // valid if result_.was_asked_to_end
  fsdp::Ending ending_;
  Clock::time_point next_look_at_nodes_{};
};

}  // namespace fsdprun
