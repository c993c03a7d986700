#pragma once
/// \file
/// This rank's number, the place where the ranks meet, and the backend. Options take precedence over the environment.

#include <c10/core/Device.h>
#include <fsdp/process_group.h>

#include "comm/core/ranks.h"
#include "comm/rendezvous/environment.h"

#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

/// The beginning of error messages before a rank knows its number.
inline constexpr std::string_view kInitPrefix = "[fsdp] init_process_group: ";

/// The CUDA support that a process finds.
struct CudaSupport {
  /// True if this build of fsdp has NCCL.
  bool has_nccl = false;
  /// Number of CUDA devices that this process sees; CUDA_VISIBLE_DEVICES can hide some.
  int devices = 0;
};

struct BackendChoice {
  /// Name of the backend: "nccl", "cpu", "shm", "gloo" or "hierarchical".
  std::string backend;
  /// The device of this rank; set only with "nccl".
  std::optional<c10::Device> device = std::nullopt;
};

/// Resolves the backend that the user asked for. "auto" is "nccl" if this build has NCCL and there is a device,
/// otherwise "cpu". With "nccl", a rank gets the device with its local rank's number. A pure function. Throws
/// UsageError for an unknown name, for "nccl" if that is not available, and for a local rank that has no device.
BackendChoice choose_backend(const std::string& asked, int local_rank, const CudaSupport& cuda);

/// Asks LibTorch for the CUDA support. Makes no CUDA context.
CudaSupport cuda_support();

/// Makes `device` the current device of the calling thread.
void make_current(c10::Device device);

struct Membership {
  RendezvousParameters parameters;
  Ranks ranks = {};
  /// Name of the backend: "nccl", "shm", "gloo", "hierarchical" or "cpu"; see ProcessGroupOptions.
  std::string backend;
  /// The backend for tensors on an accelerator, either "nccl" or the user's own.
  std::optional<DeviceBackend> device_backend = std::nullopt;

  /// The user's name for this host (FSDP_HOST). If it is empty, the kernel tells hosts apart.
  std::string host = "";
  /// True if all ranks compare each operation before it begins (FSDP_CHECK=each).
  bool compares_first = false;

  int rank() const { return ranks.rank; }
  int world_size() const { return ranks.world_size; }
};

/// Resolves the options and the environment. Throws UsageError with the option or variable that is missing or wrong.
/// Communicates nothing.
Membership resolve_membership(const ProcessGroupOptions& options);

}  // namespace fsdp
