#pragma once
/// \file
/// The one door to NCCL.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace fsdp {

/// Whether this build has NCCL: LibTorch has CUDA, and CUDA's and NCCL's headers were found.
bool has_nccl();

/// Connects all ranks with each other, each by its CUDA device; blocks until they are. The backend refuses tensors of
/// another device. Collective. Must not be called without has_nccl().
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    c10::Device device);

}  // namespace fsdp
