#pragma once
/// \file
/// Whether the threads of a rank that communicate are at rest.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace fsdp {

/// Counts what a rank does and knows which of its threads wait. A thread belongs to it from the first operation that it
/// begins until it ends: what such a thread computes may lead to the operation that other ranks wait for. Thread safe.
class Activity {
 public:
  /// The calling thread waits while this lives.
  class Waiting {
   public:
    explicit Waiting(Activity& activity) : activity_(activity) { activity_.add_wait(+1); }
    ~Waiting() { activity_.add_wait(-1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Activity& activity_;
  };

  /// The calling thread begins an operation.
  void begin() { add_wait(0); }
  /// What the calling thread begins is no reason to expect more of it.
  static void leave_out_this_thread();
  static bool is_this_thread_left_out();
  /// An operation has come further.
  void move() { ++moves_; }
  /// As long as this stays the same, nothing began, ended or came further.
  uint64_t moves() const { return moves_; }
  /// Whether there are threads that communicate, and every one waits.
  bool is_at_rest();

 private:
  struct Caller {
    std::weak_ptr<void> alive;
    int waits = 0;
  };
  void add_wait(int change);

  std::atomic<uint64_t> moves_{0};
  std::mutex mutex_;
  std::map<std::thread::id, Caller> callers_;
};

}  // namespace fsdp
