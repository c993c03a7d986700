#pragma once
/// \file
/// Factories of c10d backends, for accelerators for which the library has no backend.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Function that makes a c10d backend. Its ranks meet in `store`, which they share with no other backend, and wait at
/// most `timeout` for each other. Collective over these ranks. The library calls the function for each communicator of
/// a process group, which has one for gathers and one for reductions; for each direction in which two ranks exchange
/// messages, with `world_size` 2; and again after a failure.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, std::chrono::milliseconds timeout)>;

/// Backend that runs collectives and messages on an accelerator's tensors.
struct DeviceBackend {
  c10::Device device;   ///< this rank's device; not the CPU
  BackendFactory make;  ///< makes the backend
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
