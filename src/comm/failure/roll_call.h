#pragma once
/// \file
/// How a process hears that another rank failed, and how ranks find out through the store which rank is to blame.

#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/verdict.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace fsdp {

class RollCall;

/// Hears of failures for all process groups of a rank. One thread waits for a key of the store on a connection of its
/// own, so the store gets no requests while nothing fails. See Note [Alarm].
///
/// Thread-safe. The alarm's thread can outlive its last user.
class Alarm : public std::enable_shared_from_this<Alarm> {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  /// Makes a connection to the store on which nothing else waits.
  using Connect = std::function<StorePtr()>;

  /// Makes an alarm. When the pointer is destroyed, its thread ends within seconds or is left behind.
  static std::shared_ptr<Alarm> make();

  /// Starts to listen for the rank `ranks.name()`. Only the first call has an effect. Ranks that ring each other must
  /// see the same keys through `connect`.
  void start(const Connect& connect, const Ranks& ranks);
  /// Adds a roll call, which hears of failures in the alarm's thread.
  void add(std::weak_ptr<RollCall> call);
  /// Calls `act` for each added roll call that still exists.
  void tell(const std::function<void(RollCall&)>& act) const;
  /// Makes the roll calls of these global ranks look into the store. Throws what the store throws.
  void ring(const std::vector<int>& ranks) const;

  /// Calls leave() on every roll call of this process that still exists and ends the alarms. Called before the process
  /// exits.
  static void leave_all();

 private:
  Alarm() = default;
  void listen();
  // Ends the thread. May be called again. Does nothing in a forked child, which has no such thread.
  void stop();

  mutable Mutex mutex_;
  std::vector<std::weak_ptr<RollCall>> calls_ FSDP_GUARDED_BY(mutex_);
  // start() sets these four.
  StorePtr listening_, ringing_;
  int rank_ = 0;
  pid_t process_ = 0;
  std::atomic<bool> is_stopping_{false};
  std::promise<void> has_listened_;
  std::thread ear_;  // runs listen()
};

struct RollCallOptions {
  /// The time in which a rank must answer before it counts as lost.
  std::chrono::milliseconds answer_time = std::chrono::seconds(5);
  /// True if rank 0 hosts the store, so a store that does not answer means that rank 0 is lost.
  bool store_in_rank_0 = false;
  /// The rank's alarm, which all its groups share.
  std::shared_ptr<Alarm> alarm = Alarm::make();
  /// The processes of other ranks on this host, by global rank. If the store is gone, they show whether the rank that
  /// this rank waits for is stopped.
  std::map<int, pid_t> neighbours = {};
};

/// Asks all ranks of a process group what failed and draws the verdict. Each rank has one for each process group, which
/// the group's communicators share.
///
/// A rank whose collective fails raises the alarm. Every living rank, even one that is idle or computes, answers with
/// its last operations and ends its own waits. The first verdict in the store is the verdict of all ranks, so all name
/// the same rank, whichever rank exits first. After a verdict the process group is unusable. If the verdict says that a
/// rank is gone, every rank that hears of it ends all its process groups. See Note [Roll call]. Thread-safe.
class RollCall {
 public:
  /// A sequence of operations whose state this rank reports. The alarm's thread and the threads of other queues call
  /// the functions.
  class Queue {
   public:
    virtual ~Queue() = default;
    /// Returns a description of the last operation, e.g. "barrier (#3), done 0.2 s ago"; empty if there was none.
    virtual std::string status() const = 0;
    /// Returns the rank that the operation waits for; -1 if it waits for none.
    virtual int waiting_for() const { return -1; }
    /// Ends the operation in progress.
    virtual void interrupt() = 0;
  };

  /// Makes the roll call of a group, whose keys `connect` must keep apart from other groups' keys. `beginning` counts
  /// how often the ranks have started over.
  static std::shared_ptr<RollCall> start(const Alarm::Connect& connect, Ranks ranks, RollCallOptions options,
                                         int beginning = 0);

  void enroll(std::weak_ptr<Queue> queue);

  /// Raises the alarm and waits for the verdict, at most a few seconds.
  Verdict alarm(Cause cause, int waiting_for, const std::string& operation, const std::string& detail);

  /// Publishes a verdict that needs no roll call. Returns the verdict that holds, which is the first in the store.
  Verdict pronounce(const Verdict& verdict);

  /// Returns the verdict if there is one. On the rank that hosts the store, waits until the other ranks have it too, in
  /// every process group that has a verdict.
  std::optional<Verdict> verdict();

  /// Tells the other ranks that this rank leaves on purpose. Waits a bounded time. Later calls have no effect.
  void leave();

  /// Reads what other ranks wrote to the store before they rang for this rank. Does not wait for other ranks.
  void look();

 private:
  RollCall(c10::intrusive_ptr<c10d::Store> store, Ranks ranks, RollCallOptions options);
  Verdict verdict_after(const std::function<void()>& act, int waiting_for = -1);
  bool answer(const Report& report);
  void ring() const;
  void publish(const Verdict& verdict);
  void conclude(const Verdict& verdict);
  void end_operations(const Verdict& verdict);
  Verdict decide_by_reports();
  void pass_on(const Verdict& verdict) const;
  void wait_until_told(std::chrono::steady_clock::time_point end) const;
  std::string operations() const;
  std::vector<std::shared_ptr<Queue>> queues() const;
  std::optional<Verdict> known() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const Ranks ranks_;
  const RollCallOptions options_;
  const pid_t process_ = getpid();  // a forked child does not speak for this rank
  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::weak_ptr<Queue>> queues_ FSDP_GUARDED_BY(mutex_);
  std::optional<Verdict> verdict_ FSDP_GUARDED_BY(mutex_);
  std::atomic<bool> answered_ = false;
  std::once_flag leaves_, others_follow_;
};

}  // namespace fsdp
