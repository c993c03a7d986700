#pragma once
/// \file
/// Finds out, through the store, who is to blame when a collective fails.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/failure/neighbours.h"
#include "comm/failure/verdict.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace fsdp {

struct RollCallOptions {
  /// How often a rank looks for another rank's alarm.
  std::chrono::milliseconds poll = std::chrono::milliseconds(500);
  /// How long a rank may take to answer before it counts as lost.
  std::chrono::milliseconds answer_time = std::chrono::seconds(5);
  /// True if the store lives in rank 0, so that a broken store means that rank 0 is lost.
  bool store_in_rank_0 = false;
  /// Ranks of this host whose end is noticed though their connections stay open; may be null.
  std::shared_ptr<const Neighbours> neighbours = nullptr;
};

/// One per rank and process group, shared by its lanes.
///
/// A thread looks into the store twice a second. A rank whose collective fails raises the alarm there; every living rank, also one that is idle or computes, answers with its last
/// operations and ends its own waits. The first verdict in the store holds for all, so that all ranks name the same
/// culprit, whoever of them exits first. After a verdict the group is over. See Note [Roll call].
class RollCall : public std::enable_shared_from_this<RollCall> {
 public:
  /// What a rank can be asked about. Called from the roll call's thread.
  class Witness {
   public:
    virtual ~Witness() = default;
    /// The last operation, e.g. "barrier (#3), done 0.2 s ago"; empty if there was none.
    virtual std::string status() const = 0;
    /// Ends the operation in progress.
    virtual void interrupt() = 0;
  };

  static std::shared_ptr<RollCall> start(c10::intrusive_ptr<c10d::Store> store, Ranks ranks, RollCallOptions options);
  ~RollCall();

  void enroll(std::weak_ptr<Witness> witness);

  /// Raises the alarm and waits, for a few seconds at most, for the verdict.
  Verdict alarm(Cause cause, int waiting_for, const std::string& operation, const std::string& detail);

  /// Publishes a verdict that needs no roll call. Returns `verdict`.
  Verdict pronounce(Verdict verdict);

  /// The verdict, if there is one; the rank that hosts the store gets it when the others have it too.
  std::optional<Verdict> verdict() const;

  /// Tells the others that this rank leaves on purpose, and ends the thread. Bounded; idempotent.
  void leave();

  /// Leaves every group of this process that is still there, before the process exits.
  static void leave_all();

 private:
  RollCall(c10::intrusive_ptr<c10d::Store> store, Ranks ranks, RollCallOptions options);
  void run();
  bool notice_death();
  void conclude();
  Verdict call_roll();
  bool decides(bool is_last);
  bool comes(const std::string& key, std::chrono::milliseconds time);
  std::vector<std::optional<Report>> read_reports();
  std::vector<std::weak_ptr<Witness>> witnesses() const;
  void acknowledge();
  void settle(Verdict verdict);
  Verdict store_is_gone(const std::string& detail) const;
  std::string operations() const;
  bool hosts_store() const { return options_.store_in_rank_0 && ranks_.rank == 0; }
  std::chrono::milliseconds farewell() const;
  bool may_throw() const;
  std::optional<Verdict> known() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const Ranks ranks_;
  const RollCallOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::weak_ptr<Witness>> witnesses_;
  std::optional<Report> alarm_;
  std::optional<Verdict> pronounced_, verdict_;
  // Ranks that had ended at the last look, and those of them that had left before.
  std::set<int> ended_, gone_;  // only the thread's
  bool leaving_ = false, finished_ = false, store_is_silent_ = false;
  std::thread thread_;
};

}  // namespace fsdp
