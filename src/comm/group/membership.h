#pragma once
/// \file
/// Who this rank is and where the ranks meet: options first, then the environment.

#include <c10/core/Device.h>
#include <fsdp/process_group.h>

#include "comm/core/ranks.h"
#include "comm/rendezvous/environment.h"

#include <optional>
#include <string>

namespace fsdp {

struct Membership {
  Rendezvous rendezvous;
  Ranks ranks = {};
  /// "nccl", "shm", "gloo", "hierarchical", or "cpu"; see ProcessGroupOptions.
  std::string backend;
  /// With "nccl", or the caller's own.
  std::optional<DeviceBackend> device_backend = std::nullopt;

  /// The secret that the ranks of the job share; empty: there is none.
  std::string token = "";
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
