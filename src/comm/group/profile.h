#pragma once
/// \file
/// What ranks tell each other about themselves when they meet, and what follows from it for how they communicate. Pure.

#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/core/ranks.h"

namespace fsdp {

/// One rank's.
struct Profile {
  std::string claims;    ///< what must be the same on every rank
  std::string domain;    ///< see loopback_domain()
  std::string host;      ///< what the user calls its host, if that is not its domain
  std::string obstacle;  ///< why it cannot share memory; empty if it can
  std::string user;      ///< its number
  std::string process;   ///< see own_process_name()
  std::string listener;  ///< how to connect to its Unix socket

  auto fields() { return std::tie(claims, domain, host, obstacle, user, process, listener); }
};

/// By rank: the number of its host. Ranks of one loopback domain are on one host unless the user says otherwise; hosts
/// are numbered by their first ranks.
std::vector<int> hosts_of(std::span<const Profile> profiles);

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

/// By the backend that was asked for; `hosts`: see hosts_of. The same on every rank. Throws UsageError where "shm" or
/// "hierarchical" is in vain; `prefix`: how that begins.
CarrierChoice choose_carrier(const std::string& backend, const Ranks& ranks, std::span<const Profile> profiles,
                             std::span<const int> hosts, const std::string& prefix);

}  // namespace fsdp
