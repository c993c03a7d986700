#pragma once
/// \file
/// A c10d backend for the checked device, between ranks that are threads.

#include <fsdp/process_group.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fsdp::test::checked {

/// Behaves as NCCL's does: has a stream of its own, on which a collective comes after what the caller's current stream
/// had been given; `Work::wait()` makes the caller's current stream wait, with a timeout the host too; a Work keeps its
/// tensors until it was waited for, or until the backend goes. Sums in rank order.
c10::intrusive_ptr<c10d::Backend> make_checked_backend(c10d::Store& store, int rank, int size,
                                                       std::chrono::milliseconds timeout, c10::Device device);

/// For ProcessGroupOptions: rank r's tensors are on the device with its number.
DeviceBackend device_backend_of(int rank);

}  // namespace fsdp::test::checked
