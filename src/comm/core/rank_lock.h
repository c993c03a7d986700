#pragma once
/// \file
/// A lock of one rank's state. The thread that holds it releases it while the thread waits for other ranks.

#include <mutex>

#include "comm/core/mutex.h"

namespace fsdp {

/// A recursive mutex. Satisfies BasicLockable.
class FSDP_THREAD_SAFETY(capability("mutex")) RankLock {
 public:
  void lock() FSDP_THREAD_SAFETY(acquire_capability()) {
    mutex_.lock();
    ++depth_;
  }
  void unlock() FSDP_THREAD_SAFETY(release_capability()) {
    --depth_;
    mutex_.unlock();
  }

  /// Releases the lock completely, however often the calling thread has locked it, and locks it again in the
  /// destructor.
  class ScopedRelease {
   public:
    explicit ScopedRelease(RankLock& lock) : lock_(lock), depth_(lock.depth_) {
      for (int i = 0; i < depth_; ++i) lock_.unlock();
    }
    ~ScopedRelease() {
      for (int i = 0; i < depth_; ++i) lock_.lock();
    }
    ScopedRelease(const ScopedRelease&) = delete;
    ScopedRelease& operator=(const ScopedRelease&) = delete;

   private:
    RankLock& lock_;
    const int depth_;
  };

 private:
  std::recursive_mutex mutex_;
  int depth_ = 0;  // how often the owner has locked; only the owner writes it
};

}  // namespace fsdp
