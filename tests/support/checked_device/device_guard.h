#pragma once
/// \file
/// Devices, streams and events of the checked device, where LibTorch asks for them.

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fsdp::test::checked {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
/// How many there are: ranks that are threads have one each.
inline constexpr c10::DeviceIndex kDevices = 4;

/// Each thread has a current device and, for each device, a current stream, as with CUDA; of the pool's streams there
/// are 32, which are given in turn. Streams run what they are given at once, so an event is over when it is recorded;
/// the order is kept by Timeline.
const c10::impl::DeviceGuardImplInterface& device_guard();

}  // namespace fsdp::test::checked
