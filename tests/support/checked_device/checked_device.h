#pragma once
/// \file
/// A simulated device that checks, without a GPU, the order of the operations that streams are given.
///
/// Its memory is host memory, and every operator runs at once. Its streams, events, caching allocator and c10d backend,
/// however, order operations as those of CUDA and NCCL do. The device knows which streams read and wrote each block. It
/// reports each use that no event and no wait of the host orders (Fault), even if the values came out right.

#include <fsdp/communicator.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/checked_device/checked_backend.h"
#include "support/checked_device/device_guard.h"
#include "support/checked_device/findings.h"

namespace fsdp::test::checked {

/// Registers the device with LibTorch as "checked" ("checked:0" and so on). Only the first call in a process has an
/// effect.
void install();

c10::Device device(int index);

/// Fixture for tests on the device. The test fails if there is a violation, unless it calls violations() itself.
class CheckedDevice : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Returns the violations so far. After this call, violations no longer make the test fail.
  std::vector<Violation> violations();

 private:
  bool looks_itself_ = false;
};

/// Runs `fn(rank)` in `ranks` threads, each with its own device and process group; see run_thread_ranks. `timeout` is
/// the timeout of the process groups; `wrap` is described in ThreadRanksOptions.
void run_ranks(int ranks, const std::function<void(int rank)>& fn,
               std::chrono::milliseconds timeout = std::chrono::seconds(60),
               std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>, int rank)> wrap = {});

}  // namespace fsdp::test::checked
