#pragma once
/// \file
/// Sleeping until another process changes a word of shared memory (futex(2)).

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fsdp {

/// Sleeps while `word` holds `seen`, until `wake_all` or for `limit` at most; may return early.
void sleep_while(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds limit);
void wake_all(const std::atomic<uint32_t>& word);

}  // namespace fsdp
