#pragma once
/// \file
/// Ranks that are threads of the test. They start fast, and suffice for everything but process-wide state and
/// lost processes.

#include <fsdp/communicator.h>
#include <fsdp/process_group.h>

#include "support/backend.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace fsdp::test {

struct ThreadRanksOptions {
  /// Timeout of the process group.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// Backend of the ranks: "shm", "gloo" or "hierarchical". If it is empty, test_backend() chooses.
  std::string backend = {};
  /// Wraps a rank's communicator, e.g. in a recording communicator, before the process group is made from it.
  std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>, int rank)> wrap = {};
  /// Returns the backend for the tensors on a rank's device.
  std::function<DeviceBackend(int rank)> device_backend = {};
  /// For each rank, the number of the host on which it pretends to run. If it is empty, test_hosts() chooses.
  std::vector<int> hosts = {};
};

/// Runs `fn(rank)` in `world_size` threads. The default process group of each thread contains all of them (it is a
/// local one if there is only one rank), so fsdp::rank() and everything else that uses the default group works as in a
/// program.
///
/// Rethrows the exception that came first, with the rank in front of its message and with the same type if the type is
/// one of fsdp's; the messages of the other ranks are appended. A rank that throws leaves its group, so the other ranks
/// end with PeerLost instead of hanging. gtest's EXPECT_* works in these threads. Where a collective follows, use
/// EXPECT and not ASSERT.
///
///     run_thread_ranks(3, [](int rank) { fsdp::barrier(); });
void run_thread_ranks(int world_size, const std::function<void(int rank)>& fn, ThreadRanksOptions options = {});
/// Calls run_thread_ranks. The options come first here, so that a long `fn` is the last argument.
inline void run_thread_ranks_with(int world_size, const ThreadRanksOptions& options,
                                  const std::function<void(int rank)>& fn) {
  run_thread_ranks(world_size, fn, options);
}

/// Starts a thread that belongs to the calling thread's rank: `act` runs with that rank's default process group.
std::thread thread_of_rank(std::function<void()> act);

/// Makes a rank's process group over `store` in the calling thread, for tests that do not use run_thread_ranks.
std::shared_ptr<ProcessGroup> make_thread_rank(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               const ThreadRanksOptions& options);

}  // namespace fsdp::test
