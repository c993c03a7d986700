#pragma once
/// \file
/// The checked device's devices, streams and events, through LibTorch's interface.

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fsdp::test::checked {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
/// Number of devices. Each thread rank has one.
inline constexpr c10::DeviceIndex kDevices = 4;

/// As with CUDA, each thread has a current device and, for each device, a current stream. The pool has 32 streams,
/// which are handed out in turn. Streams run their work at once, so an event is complete as soon as it is recorded;
/// Timeline keeps the order that CUDA would guarantee.
const c10::impl::DeviceGuardImplInterface& device_guard();

/// Sets whether the calling thread's streams report that they record a graph.
void pretend_to_record_graph(bool records);

}  // namespace fsdp::test::checked
