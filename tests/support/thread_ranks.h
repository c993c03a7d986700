#pragma once
/// \file
/// Ranks as threads of the test: fast, and enough for everything except process-wide state and death.

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
  /// The process group's timeout.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// "shm", "gloo", "hierarchical"; empty: test_backend().
  std::string backend = {};
  /// Wraps a rank's communicator before the group is made from it, e.g. in a RecordingCommunicator.
  std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>, int rank)> wrap = {};
  /// The backend for the tensors of a rank's device.
  std::function<DeviceBackend(int rank)> device_backend = {};
  /// For each rank, the number of the host that it pretends to run on; empty: test_hosts().
  std::vector<int> hosts = {};
};

/// Runs `fn(rank)` in `world_size` threads. In each, the default group is a process group of all of them (a local one
/// if there is only one rank), so fsdp::rank() and everything else that uses the default group works as in a program of
/// its own.
///
/// Rethrows the exception that came first, with the rank in front of its message, and with the same type if it is one
/// of fsdp's; the messages of the others are appended. A rank that throws leaves its group, so the others end with
/// PeerLost instead of hanging. gtest's EXPECT_* work in the threads; use EXPECT, not ASSERT, where a collective
/// follows.
///
///     run_thread_ranks(3, [](int rank) { fsdp::barrier(); });
void run_thread_ranks(int world_size, const std::function<void(int rank)>& fn, ThreadRanksOptions options = {});
/// The same with the options first, so that a long `fn` is the last argument.
inline void run_thread_ranks_with(int world_size, const ThreadRanksOptions& options,
                                  const std::function<void(int rank)>& fn) {
  run_thread_ranks(world_size, fn, options);
}

/// Starts a thread of the calling thread's rank: `act` has that rank's default process group.
std::thread thread_of_rank(std::function<void()> act);

/// Makes the group of one rank, in the calling thread, over `store`, for tests that need ranks without
/// run_thread_ranks.
std::shared_ptr<ProcessGroup> make_thread_rank(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               const ThreadRanksOptions& options);

}  // namespace fsdp::test
