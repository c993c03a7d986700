#pragma once
/// \file
/// A rendezvous store whose host stops.

#include <condition_variable>
#include <memory>
#include <mutex>

#include "comm/rendezvous/watched_store.h"

namespace fsdp::test {

/// The host of a store. It stops after `calls` calls, until `go_on()`.
class StoreHost {
 public:
  explicit StoreHost(int calls) : left_(calls) {}
  ~StoreHost() { go_on(); }

  /// Waits while the host is stopped.
  void ask() {
    std::unique_lock lock(mutex_);
    ++asked_;
    if (left_-- > 0) return;
    changed_.wait(lock, [&] { return goes_on_; });
  }
  void go_on() {
    std::lock_guard lock(mutex_);
    goes_on_ = true;
    changed_.notify_all();
  }
  int asked() const {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int left_, asked_ = 0;
  bool goes_on_ = false;
};

}  // namespace fsdp::test
