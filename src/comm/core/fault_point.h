#pragma once
/// \file
/// Places at which a test can interrupt or kill this process: edges of state machines and lines inside collectives.

#include <atomic>

namespace fsdp {

/// The function that every fault point calls on the thread that reaches it. Only tests set it; otherwise it is null.
inline constinit std::atomic<void (*)(const char* place)> on_fault_point{nullptr};

inline void fault_point(const char* place) {
  if (auto* act = on_fault_point.load(std::memory_order_relaxed)) act(place);
}

}  // namespace fsdp
