#pragma once
/// \file
/// Counts the operators that compute with unsharded parameters at the moment.

#include <atomic>

#include "comm/core/fault_point.h"
#include "comm/core/rank_lock.h"

namespace fsdp::runtime {

/// Those of one group, on any thread. What they read stays in memory, and their parameters stay whole, until they end.
class Pins {
 public:
  /// Called under the rank's lock when an operator of the calling thread begins.
  void add() {
    ++count_;
    ++own_;
  }
  /// Called without the lock when the operator ends.
  void remove() {
    --own_;
    if (--count_ == 0) count_.notify_all();
  }
  bool are_there() const { return count_ > 0; }
  /// Lets the rank's lock go until there are none. Returns whether it did, so that others may have done something
  /// meanwhile. A thread that is inside of an operator, which its own wait would keep from ending, waits for none.
  bool wait_until_gone(RankLock& lock) {
    if (!are_there() || own_ > 0) return false;
    fault_point("waiting for operators");
    const RankLock::LetGo others_go_on(lock);
    for (int count = count_; count > 0; count = count_) count_.wait(count);
    return true;
  }

 private:
  static inline constinit thread_local int own_ = 0;  // of this thread, of all groups
  std::atomic<int> count_ = 0;
};

}  // namespace fsdp::runtime
