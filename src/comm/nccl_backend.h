#pragma once
/// \file
/// The one door to NCCL; compiled only with a LibTorch that has CUDA.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace fsdp {

/// A BackendFactory (see c10d_communicator.h).
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout);

}  // namespace fsdp
