#pragma once
/// \file
/// Counters of the memory that LibTorch's allocator gives to one thread.

#include <c10/core/Allocator.h>

#include <algorithm>
#include <memory>

namespace fsdp::test {

/// Counts allocations as long as it lives, on the thread that made it. On the CPU, forward and backward run on that
/// thread.
struct CountedMemory {
  struct Counts final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
      largest = std::max(largest, bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
    int64_t largest = 0;  ///< number of bytes of the largest allocation
  };

  const std::shared_ptr<Counts> counts = std::make_shared<Counts>();
  const c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, counts};
};

}  // namespace fsdp::test
