#pragma once
/// \file
/// Functions that make c10d's Gloo and NCCL backends.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace fsdp {

/// Makes a Gloo backend. Blocks until all ranks are connected with each other; throws after `timeout`. Collective.
///
/// The backend listens on the interfaces of GLOO_SOCKET_IFNAME (comma-separated) if that is set, otherwise on
/// `address`, or on the address of this host's name if `address` is empty.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    const std::string& address);

/// Returns whether this build has NCCL: LibTorch has CUDA, and the headers of CUDA and NCCL were found.
bool has_nccl();

/// Makes an NCCL backend on this rank's CUDA device. Blocks until all ranks are connected with each other. Collective.
/// Throws Error if has_nccl() is false.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    c10::Device device);

}  // namespace fsdp
