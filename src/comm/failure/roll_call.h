#pragma once
/// \file
/// How a process hears of a failure elsewhere, and how ranks find out, through the store, who is to blame for it.

#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/neighbours.h"
#include "comm/failure/verdict.h"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

class RollCall;

/// One for all process groups of a rank. A thread waits for one key of the store on a connection of its own, so nothing
/// is asked while nothing fails. See Note [Alarm].
///
/// Thread safety: all of it.
class Alarm {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  /// Makes a connection to the store that nothing else waits on.
  using Connect = std::function<StorePtr()>;

  Alarm() = default;
  /// Ends its thread, within seconds.
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// Begins to listen, as one of these ranks; only the first call does. Ranks that ring for each other see the same
  /// keys there.
  void start(const Connect& connect, const Ranks& ranks);
  /// This roll call hears of failures, in the alarm's thread.
  void add(std::weak_ptr<RollCall> call);
  /// Calls `act` for each roll call that was added and is still there.
  void tell(const std::function<void(RollCall&)>& act) const;
  /// Makes the roll calls of these global ranks look. Throws what the store throws.
  void ring(const std::vector<int>& ranks) const;

  /// Leaves with every roll call of this process that is still there, before the process exits.
  static void leave_all();

  struct State;

 private:
  std::shared_ptr<State> state() const {
    const MutexLock lock(mutex_);
    return state_;
  }

  mutable Mutex mutex_;
  std::shared_ptr<State> state_ FSDP_GUARDED_BY(mutex_);  // null: it has not started
};

struct RollCallOptions {
  /// How long a rank may take to answer before it counts as lost.
  std::chrono::milliseconds answer_time = std::chrono::seconds(5);
  /// True if the store lives in rank 0, so that a broken store means that rank 0 is lost.
  bool store_in_rank_0 = false;
  /// That of the rank, for all its groups.
  std::shared_ptr<Alarm> alarm = std::make_shared<Alarm>();
  /// The processes of ranks on this host, which tell a stopped rank where the store is gone; may be null.
  std::shared_ptr<Neighbours> neighbours = nullptr;
};

/// One per rank and process group, shared by its lanes.
///
/// A rank whose collective fails raises the alarm; every living rank, also one that is idle or computes, answers with
/// its last operations and ends its own waits. The first verdict in the store holds for all, so that all ranks name the
/// same rank, whoever of them exits first. After a verdict the group is over; a rank that is gone ends every group of
/// every rank that hears of it. See Note [Roll call].
class RollCall {
 public:
  /// An order of operations, about which a rank can be asked. Called from the alarm's thread.
  class Order {
   public:
    virtual ~Order() = default;
    /// The last operation, e.g. "barrier (#3), done 0.2 s ago"; empty if there was none.
    virtual std::string status() const = 0;
    /// The rank that it waits for; -1: none.
    virtual int waiting_for() const { return -1; }
    /// Ends the operation in progress.
    virtual void interrupt() = 0;
  };

  /// `connect`: see Alarm; the keys are this group's alone. `beginning`: how often the ranks have started over.
  static std::shared_ptr<RollCall> start(const Alarm::Connect& connect, Ranks ranks, RollCallOptions options,
                                         int beginning = 0);

  void enroll(std::weak_ptr<Order> order);

  /// Raises the alarm and waits, for a few seconds at most, for the verdict.
  Verdict alarm(Cause cause, int waiting_for, const std::string& operation, const std::string& detail);

  /// Publishes a verdict that needs no roll call. Returns the one that holds: the first.
  Verdict pronounce(const Verdict& verdict);

  /// The verdict, if there is one; the rank that hosts the store gets it when the others, of all groups that are over,
  /// have it too.
  std::optional<Verdict> verdict();

  /// Tells the others that this rank leaves on purpose. Bounded; idempotent.
  void leave();

  /// Somebody rang for this rank a moment ago: something may be in the store for it. This does not wait for others.
  void look();

 private:
  RollCall(c10::intrusive_ptr<c10d::Store> store, Ranks ranks, RollCallOptions options);
  Verdict verdict_after(const std::function<void()>& act, int waiting_for = -1);
  Verdict verdict_without_store(const std::string& detail, int waiting_for) const;
  bool answer(const Report& report);
  void ring() const;
  void publish(const Verdict& verdict);
  void conclude(const Verdict& verdict);
  void end_operations(const Verdict& verdict);
  Verdict decide_by_reports();
  void pass_on(const Verdict& verdict) const;
  void let_others_follow();
  void wait_until_told(std::chrono::steady_clock::time_point end) const;
  std::string operations() const;
  std::vector<std::shared_ptr<Order>> orders() const;
  std::optional<Verdict> known() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const Ranks ranks_;
  const RollCallOptions options_;
  const pid_t process_ = getpid();  // a child that it forks tells nobody anything
  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::weak_ptr<Order>> orders_ FSDP_GUARDED_BY(mutex_);
  std::optional<Verdict> verdict_ FSDP_GUARDED_BY(mutex_);
  bool answered_ FSDP_GUARDED_BY(mutex_) = false;
  std::once_flag leaves_, others_follow_;
};

}  // namespace fsdp
