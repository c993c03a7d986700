#include "device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace bench {

double device_peak_mb(c10::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(stats.allocated_bytes[kAll].peak) / (1 << 20);
}

void forget_device_peak(c10::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace bench
