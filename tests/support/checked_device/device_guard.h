#pragma once
/// \file
/// The checked device's devices, streams and events, through LibTorch's interface.

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fsdp::test::checked {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
/// How many devices there are: each rank, run as a thread, has one.
inline constexpr c10::DeviceIndex kDevices = 4;

/// As with CUDA, each thread has a current device and, for each device, a current stream. The pool has 32 streams,
/// which are handed out in turn. Streams run what they are given at once, so an event is over when it is recorded;
/// Timeline keeps the order.
const c10::impl::DeviceGuardImplInterface& device_guard();

/// Whether the calling thread's streams say that they record a graph.
void pretend_to_record_graph(bool records);

}  // namespace fsdp::test::checked
