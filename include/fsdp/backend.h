#pragma once
/// \file
/// Factories of c10d backends, for accelerators that the library has no backend for.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Makes a c10d backend. Its ranks meet in `store`, whose keys only this backend uses, and wait at most `timeout` for
/// each other. Collective. Called once for gathers, once for reductions, and again after a failure.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, std::chrono::milliseconds timeout)>;

/// The backend that runs collectives and messages on an accelerator's tensors.
struct DeviceBackend {
  c10::Device device;   ///< this rank's device; not the CPU
  BackendFactory make;  ///< makes the backend
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
