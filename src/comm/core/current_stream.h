#pragma once
/// \file
/// Streams of an accelerator, whichever it is.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fsdp {

/// The calling thread's.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Whether the stream records a graph in place of running what it is given; false with releases of LibTorch that do not
/// say so.
template <class Guard = c10::impl::VirtualGuardImpl>
bool records_graph(const c10::Stream& stream) {
  const Guard guard(stream.device_type());
  if constexpr (requires { guard.isStreamCapturing(stream); })
    return guard.isStreamCapturing(stream);
  else
    return false;
}

}  // namespace fsdp
