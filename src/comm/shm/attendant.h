#pragma once
/// \file
/// A thread that waits for collectives which something follows, so that what follows begins when they are done, not
/// when a thread of the rank next comes by.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fsdp::shm {

/// Runs waits, first in, first out, on a thread that begins with the first of them. What a wait throws is lost: whoever
/// waits for the same collective gets it too. Thread safety: `add` all of it.
class Attendant {
 public:
  Attendant() = default;
  /// The waits have to end by themselves. In a child that was forked there is no thread: `abandon` before.
  ~Attendant();
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

  void add(std::function<void()> wait);
  /// Leaves the thread alone.
  void abandon() { static_cast<void>(thread_.release()); }

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waits_;
  bool stopping_ = false;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace fsdp::shm
