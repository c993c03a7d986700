#pragma once
/// \file
/// A thread that waits for collectives which something follows, so that what follows begins when they are done, not
/// when a thread of the rank next comes by.

#include <functional>
#include <memory>

namespace fsdp::shm {

/// Runs waits, first in, first out, on a thread that begins with the first of them. What a wait throws is lost: whoever
/// waits for the same collective gets it too. Thread safety: `add` all of it.
class Attendant {
 public:
  Attendant();
  /// The waits have to end by themselves. In a child that was forked there is no thread: `abandon` before.
  ~Attendant();
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

  void add(std::function<void()> wait);
  /// Leaves the thread alone, with all that it uses.
  void abandon();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace fsdp::shm
