#pragma once
/// \file
/// How a process hears of a failure elsewhere.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/neighbours.h"

#include <functional>
#include <memory>
#include <vector>

namespace fsdp {

/// One for all process groups of a rank. A thread waits for one key of the store on a connection of its own, another
/// one for the end of processes of this host, so nothing is asked while nothing fails. See Note [Alarm].
///
/// Thread safety: all of it.
class Alarm {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  /// Makes a connection to the store that nothing else waits on.
  using Connect = std::function<StorePtr()>;

  /// What hears of failures. It is called from the alarm's threads.
  class Listener {
   public:
    virtual ~Listener() = default;
    /// Somebody rang for this rank a moment ago: something may be in the store for it. This does not wait for others.
    virtual void look() = 0;
    /// The process of this global rank has ended.
    virtual void note_end(int rank) = 0;
    /// The process exits.
    virtual void leave() = 0;
  };

  Alarm() = default;
  /// Ends its threads, within seconds.
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// Begins to listen, as one of these ranks; only the first call does. Ranks that ring for each other see the same
  /// keys there.
  void start(const Connect& connect, const Ranks& ranks, std::shared_ptr<Neighbours> neighbours);
  void add(std::weak_ptr<Listener> listener);
  /// Makes the listeners of these global ranks look. Throws what the store throws.
  void ring(const std::vector<int>& ranks) const;

  /// Leaves with every listener of this process that is still there, before the process exits.
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

}  // namespace fsdp
