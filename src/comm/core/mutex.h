#pragma once
/// \file
/// Locks that clang checks: with -Wthread-safety it refuses code that reads or writes a member without the lock that
/// guards it.

#include <mutex>

#ifdef __clang__
#define FSDP_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define FSDP_THREAD_SAFETY(attribute)
#endif

/// Follows a member that is read and written only under `lock`.
#define FSDP_GUARDED_BY(lock) FSDP_THREAD_SAFETY(guarded_by(lock))
/// Follows a function whose callers hold `lock`. A predicate that waits on a condition variable is one too.
#define FSDP_REQUIRES(lock) FSDP_THREAD_SAFETY(requires_capability(lock))

namespace fsdp {

/// A std::mutex.
class FSDP_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() FSDP_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() FSDP_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  bool try_lock() FSDP_THREAD_SAFETY(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex, or another lock, as std::unique_lock does. std::condition_variable_any waits with it.
template <class Lock>
class FSDP_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Lock& lock) FSDP_THREAD_SAFETY(acquire_capability(lock)) : lock_(lock) { lock_.lock(); }
  ~MutexLock() FSDP_THREAD_SAFETY(release_capability()) {
    if (is_held_) lock_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() FSDP_THREAD_SAFETY(acquire_capability()) {
    lock_.lock();
    is_held_ = true;
  }
  void unlock() FSDP_THREAD_SAFETY(release_capability()) {
    lock_.unlock();
    is_held_ = false;
  }

 private:
  Lock& lock_;
  bool is_held_ = true;
};

}  // namespace fsdp
