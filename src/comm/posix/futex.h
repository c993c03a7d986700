#pragma once
/// \file
/// Sleeping until another process changes a word of shared memory (futex(2)).

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace fsdp {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

/// Sleeps while `word` holds `seen`, until `wake_all` or for `limit` at most; may return early.
inline void sleep_while(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds limit) {
  const timespec time{limit.count() / 1000, (limit.count() % 1000) * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fsdp
