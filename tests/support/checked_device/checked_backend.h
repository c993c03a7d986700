#pragma once
/// \file
/// A c10d backend for the checked device, between ranks that are threads.

#include <fsdp/process_group.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fsdp::test::checked {

/// Behaves as NCCL's backend does. It has its own stream, on which a collective runs after everything that the caller's
/// current stream was given before. `Work::wait()` makes the caller's current stream wait, and with a timeout the host
/// too. A Work keeps its tensors until it is waited for or the backend is destroyed. Sums are taken in rank order.
///
/// A collective of which a rank never takes part hangs, with all that streams are given after it, until `abort()`; the
/// host goes on and hangs when it waits for such a stream. Ranks that launch different collectives, or those of two
/// communicators in different orders, hang too, and that is reported as Fault::kOrder.
c10::intrusive_ptr<c10d::Backend> make_checked_backend(c10d::Store& store, int rank, int size,
                                                       std::chrono::milliseconds timeout, c10::Device device);

/// How many operations the backends of the device have launched; what they were given as one counts once.
int launches_on(c10::Device device);

/// What becomes of collectives that the device's backends launch.
enum class Fate : uint8_t {
  kRuns,
  kHangs,  // until the abort; the other ranks' too
  kFails,  // the same, and the backend says that it failed
};
/// From the collective on that comes after the next `launches` ones.
void set_fate(c10::Device device, Fate fate, int launches = 0);

/// For ProcessGroupOptions: the tensors of rank r are on the device with index r.
DeviceBackend device_backend_of(int rank);

}  // namespace fsdp::test::checked
