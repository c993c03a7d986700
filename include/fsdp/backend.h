#pragma once
/// \file
/// Backends of c10d that carry tensors.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Makes a c10d backend whose ranks meet in `store`, whose keys are this backend's alone, and wait for each other no
/// longer than `timeout`. Collective; called once for gathers and once for reductions, and again after a failure.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, std::chrono::milliseconds timeout)>;

/// What carries the tensors of an accelerator, by its own collectives and messages.
struct DeviceBackend {
  c10::Device device;   ///< of this rank's tensors, not the CPU
  BackendFactory make;  ///< gives the backend
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
