#pragma once
/// \file
/// A lock of one rank's state. The thread that holds it releases it while the thread waits for other ranks.

#include <atomic>
#include <thread>
#include <utility>

#include "comm/core/mutex.h"

namespace fsdp {

/// A recursive mutex. Satisfies BasicLockable.
class FSDP_THREAD_SAFETY(capability("mutex")) RankLock {
 public:
  void lock() FSDP_THREAD_SAFETY(acquire_capability()) {
    const auto self = std::this_thread::get_id();
    if (owner_.load(std::memory_order_relaxed) != self) {
      mutex_.lock();
      owner_.store(self, std::memory_order_relaxed);
    }
    ++depth_;
  }
  void unlock() FSDP_THREAD_SAFETY(release_capability()) {
    if (--depth_ > 0) return;
    owner_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }

  /// Releases the lock completely, however often the calling thread has locked it, and locks it again in the
  /// destructor.
  class ScopedRelease {
   public:
    explicit ScopedRelease(RankLock& lock) : lock_(lock), depth_(std::exchange(lock.depth_, 1)) { lock_.unlock(); }
    ~ScopedRelease() {
      lock_.lock();
      lock_.depth_ = depth_;
    }
    ScopedRelease(const ScopedRelease&) = delete;
    ScopedRelease& operator=(const ScopedRelease&) = delete;

   private:
    RankLock& lock_;
    const int depth_;
  };

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  int depth_ = 0;  // how often the owner has locked; only the owner writes it
};

}  // namespace fsdp
