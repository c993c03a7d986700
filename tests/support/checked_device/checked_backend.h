#pragma once
/// \file
/// A c10d backend for the checked device, between ranks that are threads.

#include <fsdp/process_group.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fsdp::test::checked {

/// Behaves as NCCL's backend does. It has its own stream, on which a collective runs after everything that the caller's
/// current stream was given before. `Work::wait()` makes the caller's current stream wait, and with a timeout the host
/// too. A Work keeps its tensors until it is waited for or the backend is destroyed. Sums are taken in rank order.
c10::intrusive_ptr<c10d::Backend> make_checked_backend(c10d::Store& store, int rank, int size,
                                                       std::chrono::milliseconds timeout, c10::Device device);

/// How many operations the backends of the device have launched; what they were given as one counts once.
int launches_on(c10::Device device);

/// For ProcessGroupOptions: the tensors of rank r are on the device with index r.
DeviceBackend device_backend_of(int rank);

}  // namespace fsdp::test::checked
