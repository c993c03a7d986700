#pragma once
/// \file
/// Places at which a test ends or stops this process: edges of the state machines, lines inside collectives.

#include <atomic>

namespace fsdp {

/// Called at every fault point, in whatever thread passes it; null but in the process of a test.
inline constinit std::atomic<void (*)(const char* place)> on_fault_point{nullptr};

inline void fault_point(const char* place) {
  if (auto* act = on_fault_point.load(std::memory_order_relaxed)) act(place);
}

}  // namespace fsdp
