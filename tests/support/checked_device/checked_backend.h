#pragma once
/// \file
/// A c10d backend for the checked device. Its ranks are threads.

#include <fsdp/process_group.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fsdp::test::checked {

/// Makes a backend that behaves as NCCL's does. It has its own stream, and a collective runs there after everything
/// that the caller's current stream was given before. `Work::wait()` makes the caller's current stream wait; with a
/// timeout it makes the host wait, too. A Work keeps its tensors until someone waits for it or the backend is
/// destroyed. Sums are taken in rank order.
///
/// If a rank never takes part in a collective, the collective hangs until `abort()`, and so does everything that its
/// streams are given later. The host goes on, but hangs when it waits for such a stream. Ranks also hang if they launch
/// different collectives, or those of two communicators in different orders; this is reported as Fault::kOrder.
c10::intrusive_ptr<c10d::Backend> make_checked_backend(c10d::Store& store, int rank, int size,
                                                       std::chrono::milliseconds timeout, c10::Device device);

/// Returns the number of launches of the device's backends. Operations that were launched together count once.
int launches_on(c10::Device device);

/// What happens to collectives that the device's backends launch.
enum class Fate : uint8_t {
  kRuns,
  kHangs,  // the collective hangs on all ranks until abort()
  kFails,  // it hangs in the same way, and getError() reports a failure
};
/// Sets the fate of all collectives after the next `launches` ones.
void set_fate(c10::Device device, Fate fate, int launches = 0);

/// Returns a backend for ProcessGroupOptions. The tensors of rank r are on the device with index r.
DeviceBackend device_backend_of(int rank);

}  // namespace fsdp::test::checked
