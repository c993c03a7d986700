#pragma once
/// \file
/// The doors to Gloo and NCCL.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace fsdp {

/// Connects all ranks with each other; blocks until they are, or throws after `timeout`. Collective.
///
/// Listens on the interfaces of GLOO_SOCKET_IFNAME (comma-separated) if it is set, else on `address`, else on the
/// address of this machine's host name.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    const std::string& address);

/// Whether this build has NCCL: LibTorch has CUDA, and CUDA's and NCCL's headers were found.
bool has_nccl();

/// Connects all ranks with each other, each by its CUDA device; blocks until they are. Collective. Throws Error without
/// has_nccl().
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    c10::Device device);

}  // namespace fsdp
