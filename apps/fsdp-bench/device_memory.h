#pragma once
/// \file
/// Memory of a GPU as LibTorch's allocator counts it.

#include <c10/core/Device.h>

namespace bench {

/// The most that tensors took of the device's memory at one time since the last `forget_device_peak`, in MiB. Not for
/// the CPU.
double device_peak_mb(c10::Device device);

/// Does nothing on the CPU.
void forget_device_peak(c10::Device device);

}  // namespace bench
