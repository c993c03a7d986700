#pragma once
/// \file
/// What a process has once, and a child that it forks does not have in common with it.

#include <unistd.h>

#include <atomic>

namespace fsdp {

/// The process's own T, made when it is first asked for and never destroyed. A child that was forked makes its own;
/// that of its parent, with connections that both have and locks that may be held for ever, stays as it is. Thread
/// safe.
template <class T>
T& of_this_process() {
  struct Own {
    const pid_t process = getpid();
    Own* const parents = nullptr;  // so that nobody takes it for a leak
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
