#pragma once
/// \file
/// The facts that ranks tell each other about themselves when they meet, the roster that all ranks make of these facts,
/// and the choice of the transport for their data. All functions are pure.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/core/ranks.h"
#include "comm/shm/peers.h"

namespace fsdp {

/// The facts that a rank tells about itself.
struct Profile {
  std::string claims;    ///< text that must be the same on every rank
  std::string domain;    ///< see host_domain()
  std::string host;      ///< the user's name for the rank's host (FSDP_HOST); may be empty
  std::string obstacle;  ///< reason why the rank cannot share memory; empty if it can
  int user = 0;          ///< the id of the rank's user
  shm::Contact contact;  ///< data by which other ranks of the host find the rank's shared memory

  auto fields() { return std::tie(claims, domain, host, obstacle, user, contact); }
};

/// `times` runs of `length` equal numbers each. The numbers of each run are greater by `step` than those of the run
/// before. A list with a number for each rank has few such runs if, for instance, all hosts have equally many ranks.
struct Runs {
  int length = 0, step = 0, times = 0;

  auto fields() { return std::tie(length, step, times); }
};
std::vector<Runs> pack_numbers(std::span<const int> numbers);
std::vector<int> unpack_numbers(std::span<const Runs> all);

/// What a rank needs to know of all ranks of a group.
struct Roster {
  std::map<int, std::string> claims;  ///< the different claims, each by the first rank that makes it
  std::vector<Runs> hosts;            ///< number of each rank's host; hosts are numbered in the order of first ranks
  bool is_one_domain = true;          ///< true if all ranks, even those outside a subgroup, have one domain
  /// The reason why the ranks of some host cannot share memory, in one sentence; empty if all can. A subgroup has the
  /// value of the group of all ranks.
  std::string obstacle;

  auto fields() { return std::tie(claims, hosts, is_one_domain, obstacle); }
};

/// Makes the roster from each rank's profile. Ranks of one domain are on one host unless they name it differently
/// (FSDP_HOST).
Roster roster_of(std::span<const Profile> profiles);

/// Returns the roster of the subgroup of the ranks with these numbers, which ascend.
Roster roster_of(const Roster& roster, std::span<const int> ranks);

/// The transport of tensors on the CPU.
enum class Carrier {
  kSharedMemory,  ///< Ranks share memory; all are on one host.
  kHierarchical,  ///< Ranks share memory inside each host, and Gloo connects the hosts.
  kNetwork,       ///< Gloo
};

struct CarrierChoice {
  Carrier carrier = Carrier::kNetwork;
  /// The reason, for the user, why the carrier is not the one that suits these hosts; empty if it is.
  std::string obstacle;
};

/// Returns whether this backend uses shared memory if it can.
bool may_share_memory(std::string_view backend);

/// Chooses the carrier for the backend that the user asked for. The result is the same on every rank. Throws
/// UsageError, which begins with `prefix`, if ranks cannot share the memory that "shm" or "hierarchical" needs.
CarrierChoice choose_carrier(const std::string& backend, const Ranks& ranks, const Roster& roster,
                             const std::string& prefix);

}  // namespace fsdp
