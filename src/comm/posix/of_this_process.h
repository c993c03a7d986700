#pragma once
/// \file
/// Objects that a process has once and does not share with a child that it forks.

#include <unistd.h>

#include <atomic>

namespace fsdp {

/// Returns the process's own T, which is constructed when it is first asked for and never destroyed. A forked child
/// constructs its own and never uses its parent's, which may hold connections that both processes share and locks that
/// stay locked for ever. Thread-safe.
template <class T>
T& of_this_process() {
  struct Own {
    const pid_t process = getpid();
    Own* const parents = nullptr;  // keeps the parent's object reachable, so it is not a leak
    T value{};
  };
  static std::atomic<Own*> newest{nullptr};
  auto* own = newest.load();
  while (own == nullptr || own->process != getpid()) {
    auto* made = new Own{.parents = own};
    if (newest.compare_exchange_strong(own, made))
      own = made;
    else
      delete made;
  }
  return own->value;
}

}  // namespace fsdp
