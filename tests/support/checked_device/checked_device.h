#pragma once
/// \file
/// A device that checks, without a GPU, the order of the operations that streams are given.
///
/// Its memory is the CPU's and every operator runs at once, but its streams, events, caching allocator and c10d backend
/// order things as CUDA's and NCCL's do. It knows which streams read and wrote every block, and finds uses that no
/// event and no wait of the host orders (Fault), whether or not the values came out right.

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

/// Makes the device part of LibTorch, as "checked" ("checked:0" and so on). Only the first call in a process does
/// anything.
void install();

c10::Device device(int index);

/// A test on the device. It fails if there is a violation, unless the test calls violations() itself.
class CheckedDevice : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// What was found so far. After this call, violations no longer fail the test.
  std::vector<Violation> violations();

 private:
  bool looks_itself_ = false;
};

/// Runs `fn(rank)` in `ranks` threads, each with its own device and process group; see run_thread_ranks. `timeout`: the
/// process groups'. `wrap`: see ThreadRanksOptions.
void run_ranks(int ranks, const std::function<void(int rank)>& fn,
               std::chrono::milliseconds timeout = std::chrono::seconds(60),
               std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>, int rank)> wrap = {});

}  // namespace fsdp::test::checked
