#pragma once
/// \file
/// Locks that clang checks: with -Wthread-safety, clang rejects code that reads or writes a member without holding the
/// lock that guards the member.

#include <mutex>

#ifdef __clang__
#define FSDP_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define FSDP_THREAD_SAFETY(attribute)
#endif

/// Marks a member that is read and written only while `lock` is held.
#define FSDP_GUARDED_BY(lock) FSDP_THREAD_SAFETY(guarded_by(lock))
/// Marks a function that must be called with `lock` held. Predicates that wait on a condition variable need it too.
#define FSDP_REQUIRES(lock) FSDP_THREAD_SAFETY(requires_capability(lock))

namespace fsdp {

/// A std::mutex with clang's annotations.
class FSDP_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() FSDP_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() FSDP_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex, or another lockable, as std::unique_lock does. Pass it to std::condition_variable_any to wait.
template <class Lock>
class FSDP_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Lock& lock) FSDP_THREAD_SAFETY(acquire_capability(lock)) : lock_(lock) {}
  ~MutexLock() FSDP_THREAD_SAFETY(release_capability()) = default;
  void lock() FSDP_THREAD_SAFETY(acquire_capability()) { lock_.lock(); }
  void unlock() FSDP_THREAD_SAFETY(release_capability()) { lock_.unlock(); }

 private:
  std::unique_lock<Lock> lock_;
};

}  // namespace fsdp
