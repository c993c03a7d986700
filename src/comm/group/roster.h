#pragma once
/// \file
/// What ranks tell each other about themselves when they meet, what all of them need of it, and what then carries their
/// data. Pure.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/core/ranks.h"
#include "comm/shm/peers.h"

namespace fsdp {

/// What a rank says of itself.
struct Profile {
  std::string claims;    ///< what must be the same on every rank
  std::string domain;    ///< equal for processes that reach each other over the loopback interface and know each other
  std::string host;      ///< what the user calls its host, if that is not its domain
  std::string obstacle;  ///< why it cannot share memory; empty if it can
  int user = 0;          ///< its number
  shm::Contact contact;  ///< how ranks of its host find it

  auto fields() { return std::tie(claims, domain, host, obstacle, user, contact); }
};

/// A number for each rank. Where neighbours differ alike, as ranks on like hosts do, it takes a few bytes for any
/// number of ranks.
class PackedNumbers {
 public:
  PackedNumbers() = default;
  explicit PackedNumbers(std::span<const int> numbers);
  std::vector<int> unpack() const;

  auto fields() { return std::tie(runs_); }

 private:
  // `times` runs of `length` equal numbers each, every run `step` above the one before it.
  struct Runs {
    int length = 0, step = 0, times = 0;
    auto fields() { return std::tie(length, step, times); }
  };
  std::vector<Runs> runs_;
};

/// What a rank needs to know of all ranks of a group.
struct Roster {
  std::map<int, std::string> claims;  ///< each that some rank has, by the first rank that has it
  PackedNumbers hosts;                ///< hosts are counted in the order of their first ranks
  bool is_one_domain = true;          ///< of all ranks, also in the roster of a subgroup
  /// Why the ranks of some host that has several cannot share memory, in one sentence; empty if they can. Of all ranks.
  std::string obstacle;

  auto fields() { return std::tie(claims, hosts, is_one_domain, obstacle); }
};

/// Ranks of one domain are on one host unless the user says otherwise.
Roster roster_of(std::span<const Profile> profiles);

/// The roster of a subgroup: of the ranks with these numbers, in ascending order.
Roster roster_of(const Roster& roster, std::span<const int> ranks);

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

/// Whether this backend makes use of shared memory where it can.
bool may_share_memory(std::string_view backend);

/// By the backend that was asked for. The same on every rank. Throws UsageError where ranks cannot share the memory
/// that "shm" or "hierarchical" needs; `prefix`: how that begins.
CarrierChoice choose_carrier(const std::string& backend, const Ranks& ranks, const Roster& roster,
                             const std::string& prefix);

}  // namespace fsdp
