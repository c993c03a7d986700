#pragma once
/// \file
/// What carries tensors of the CPU: a decision apart from what it is taken from.

#include <span>
#include <string>
#include <string_view>

#include "comm/core/ranks.h"
#include "comm/group/roster.h"

namespace fsdp {

/// What carries tensors of the CPU.
enum class Carrier {
  kSharedMemory,  ///< all ranks are on one host
  kHierarchical,  ///< shared memory inside each host, Gloo between them
  kNetwork,       ///< Gloo, or what a device has
};

struct CarrierChoice {
  Carrier carrier = Carrier::kNetwork;
  /// Why it is not the one that these hosts call for, for the user to know; empty if it is.
  std::string obstacle;
};

/// Whether this backend makes use of it where it can.
bool may_share_memory(std::string_view backend);

/// By the backend that was asked for. The same on every rank. Throws UsageError where "shm" or "hierarchical" is in
/// vain; `prefix`: how that begins.
CarrierChoice choose_carrier(const std::string& backend, const Ranks& ranks, const Roster& roster,
                             const std::string& prefix);

}  // namespace fsdp
