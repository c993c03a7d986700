#pragma once
/// \file
/// Models on the checked device with their rows in host memory.

#include "support/checked_device/caching_allocator.h"
#include "checked_device/training.h"

namespace fsdp::test::checked {

class CheckedOffload : public CheckedDevice {
 protected:
  void TearDown() override {
    CachingAllocator::get().set_limit(std::nullopt);
    CheckedDevice::TearDown();
  }
};

inline FullyShardOptions on_host(FullyShardOptions options = {}, bool is_pinned = true) {
  options.offload_policy = CPUOffloadPolicy{is_pinned};
  return options;
}

/// In a step the host waits once: at the end of backward, for the copies of all gradients.
inline constexpr size_t kWaits = 1;

template <class M>
void expect_ordered(const DeviceTraining<M>& training, int world) {
  expect_steps_are_ordered(training, world, {}, kWaits);
}

}  // namespace fsdp::test::checked
