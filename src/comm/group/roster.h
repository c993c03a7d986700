#pragma once
/// \file
/// What ranks tell each other about themselves when they meet, and what all of them need of it. Pure.

#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace fsdp {

/// What a rank says of itself.
struct Profile {
  std::string claims;    ///< what must be the same on every rank
  std::string domain;    ///< see loopback_domain()
  std::string host;      ///< what the user calls its host, if that is not its domain
  std::string obstacle;  ///< why it cannot share memory; empty if it can
  int user = 0;          ///< its number
  std::string process;   ///< see own_process_name()
  std::string listener;  ///< how to connect to its Unix socket

  auto fields() { return std::tie(claims, domain, host, obstacle, user, process, listener); }
};

/// What ranks of one host need to find each other.
struct Contact {
  std::string process, listener;  ///< see Profile

  auto fields() { return std::tie(process, listener); }
};

/// By rank, the contacts of ranks of one host.
using Contacts = std::map<int, Contact>;

/// A number for each rank. Where neighbours differ alike, as ranks on like hosts do, it takes a few bytes for any
/// number of ranks.
class PackedNumbers {
 public:
  PackedNumbers() = default;
  explicit PackedNumbers(std::span<const int> numbers);
  std::vector<int> unpack() const;

  auto fields() { return std::tie(stretches_); }

 private:
  // `times` runs of `length` equal numbers each, every run `step` above the one before it.
  struct Stretch {
    int length = 0, step = 0, times = 0;
    auto fields() { return std::tie(length, step, times); }
  };
  std::vector<Stretch> stretches_;
};

/// What a rank needs to know of all ranks of a group.
struct Roster {
  std::map<int, std::string> claims;  ///< each that some rank has, by the first rank that has it
  PackedNumbers hosts;                ///< hosts are counted in the order of their first ranks
  PackedNumbers domains;              ///< loopback domains are counted alike
  PackedNumbers users;                ///< see Profile
  PackedNumbers obstacles;            ///< which of the texts below
  std::vector<std::string> obstacle_texts;

  auto fields() { return std::tie(claims, hosts, domains, users, obstacles, obstacle_texts); }
};

/// Ranks of one loopback domain are on one host unless the user says otherwise.
Roster roster_of(std::span<const Profile> profiles);

/// The roster of a subgroup: of the ranks with these numbers, in ascending order.
Roster roster_of(const Roster& roster, std::span<const int> ranks);

/// By host, the contacts of its ranks; of a host with one rank none.
std::vector<Contacts> contacts_of(std::span<const Profile> profiles, std::span<const int> hosts);

}  // namespace fsdp
