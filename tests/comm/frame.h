#pragma once
/// \file
/// Functions for tests of communicators that run ranks and check error messages.

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/core/text.h"
#include "support/thread_ranks.h"

namespace fsdp::test {

/// Returns the message of the `E` that `act` throws, or "no error" if it throws none. Other exceptions pass through.
template <class E = UsageError, class Act>
std::string error_of(const Act& act) {
  try {
    act();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_THAT(message, testing::HasSubstr(part));
}

/// Expects that `act` throws an `E` whose message contains all of `parts`.
template <class E = UsageError, class Act>
void expect_error(const Act& act, const std::vector<std::string>& parts) {
  expect_parts(error_of<E>(act), parts);
}

/// Calls `fn` in a thread for each rank, without a process group.
inline void run_threads(int world_size, const std::function<void(int rank)>& fn) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(fn, rank);
  for (auto& thread : threads) thread.join();
}

/// Runs thread ranks as run_thread_ranks does, but no rank leaves before all ranks are done.
inline void run_and_meet(int world_size, const std::function<void(int rank)>& fn) {
  run_thread_ranks(world_size, [&](int rank) {
    fn(rank);
    barrier();
  });
}

/// Returns the default group's communicator for gathers and for all operations that the caller waits for at once.
inline Communicator& all_ranks() { return default_process_group()->communicator(); }

/// Sums a tensor over all ranks, in place.
inline void sum_up(Communicator& ranks, const at::Tensor& tensor) {
  ranks.all_reduce(tensor, ReduceOp::kSum, {"w", {}})->wait();
}

/// Returns the rank's slice of a flat tensor.
inline at::Tensor slice_of(const at::Tensor& flat, int rank, int world_size) {
  const int64_t numel = flat.numel() / world_size;
  return flat.narrow(0, rank * numel, numel);
}

}  // namespace fsdp::test
