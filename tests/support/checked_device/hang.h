#pragma once
/// \file
/// An operation that hangs on a stream until somebody ends it.

#include <condition_variable>
#include <mutex>

namespace fsdp::test::checked {

/// Any thread may call any member.
class Hang {
 public:
  void end() {
    std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  bool is_over() const {
    std::lock_guard lock(mutex_);
    return is_over_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_over_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
};

}  // namespace fsdp::test::checked
