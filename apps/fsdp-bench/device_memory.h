#pragma once
/// \file
/// Memory of a GPU, as LibTorch's allocator counts it.

#include <c10/core/Device.h>

namespace bench {

/// Returns in MiB the most device memory that tensors took at one time since the last `forget_device_peak`. The device
/// must not be the CPU.
double device_peak_mb(c10::Device device);

/// Begins to count the peak anew. Does nothing on the CPU.
void forget_device_peak(c10::Device device);

}  // namespace bench
