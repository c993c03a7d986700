#pragma once
/// \file
/// Functions on the streams of any kind of accelerator.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fsdp {

/// Returns the calling thread's current stream on `device`.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Returns whether the stream records a graph instead of running what is issued to it. Returns false with releases of
/// LibTorch whose device guard cannot tell.
template <class Guard = c10::impl::VirtualGuardImpl>
bool records_graph(const c10::Stream& stream) {
  const Guard guard(stream.device_type());
  if constexpr (requires { guard.isStreamCapturing(stream); })
    return guard.isStreamCapturing(stream);
  else
    return false;
}

}  // namespace fsdp
