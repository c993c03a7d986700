#pragma once
/// \file
/// Who this rank is, where the ranks meet, and which backend carries its data: options first, then the environment.

#include <c10/core/Device.h>
#include <fsdp/process_group.h>

#include "comm/core/ranks.h"
#include "comm/rendezvous/environment.h"

#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

/// How errors begin before a rank knows who it is.
inline constexpr std::string_view kInitPrefix = "[fsdp] init_process_group: ";

/// What a process finds on its machine.
struct CudaSupport {
  /// This build of fsdp has NCCL.
  bool has_nccl = false;
  /// How many CUDA devices this process sees; CUDA_VISIBLE_DEVICES can hide some.
  int devices = 0;
};

struct BackendChoice {
  /// "nccl", "cpu", "shm", "gloo" or "hierarchical"
  std::string backend;
  /// With "nccl": the device of this rank.
  std::optional<c10::Device> device = std::nullopt;
};

/// "auto" is NCCL where it is compiled in and there is a device, else "cpu". With NCCL, a rank takes the device that
/// has its local rank's number. A pure function. Throws UsageError for an unknown name, for "nccl" if that is not
/// available, and for a local rank that has no device.
BackendChoice choose_backend(const std::string& asked, int local_rank, const CudaSupport& cuda);

/// Asks LibTorch; makes no CUDA context.
CudaSupport cuda_support();

/// Makes `device` the one that the calling thread's "cuda" tensors are on.
void make_current(c10::Device device);

struct Membership {
  RendezvousParameters parameters;
  Ranks ranks = {};
  /// "nccl", "shm", "gloo", "hierarchical", or "cpu"; see ProcessGroupOptions.
  std::string backend;
  /// With "nccl", or the caller's own.
  std::optional<DeviceBackend> device_backend = std::nullopt;

  /// What the user calls this host (FSDP_HOST); empty: the kernel tells hosts apart.
  std::string host = "";
  /// Whether all ranks compare each operation before it begins (FSDP_CHECK=each).
  bool compares_first = false;

  int rank() const { return ranks.rank; }
  int world_size() const { return ranks.world_size; }
};

/// Throws UsageError naming the option or variable that is missing or wrong. Communicates nothing.
Membership resolve_membership(const ProcessGroupOptions& options);

}  // namespace fsdp
