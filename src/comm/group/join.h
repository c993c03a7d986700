#pragma once
/// \file
/// Functions by which ranks meet and make their communicator and their process group.

#include <fsdp/communicator.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/core/traffic_count.h"
#include "comm/failure/roll_call.h"
#include "comm/group/membership.h"
#include "comm/group/roster.h"
#include "comm/shm/peers.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

struct Rendezvous;

/// Makes the communicator of ranks that know each other, of the kind that suits the backend and the hosts. Collective.
std::shared_ptr<Communicator> connect_ranks(const Rendezvous& rendezvous, const std::vector<int>& hosts);

/// The place where ranks meet, and this rank's place among them.
struct Rendezvous {
  Membership membership;
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout{};
  /// See RollCallOptions.
  bool store_in_rank_0 = false;
  /// The groups that are split from this one share the next three members.
  std::shared_ptr<shm::OwnRank> own_rank = std::make_shared<shm::OwnRank>();
  std::shared_ptr<Alarm> alarm = Alarm::make();
  std::shared_ptr<TrafficCount> traffic = std::make_shared<TrafficCount>();
  /// What the ranks know of each other. A subgroup has it from the start, other groups once their ranks have met. If it
  /// is set, only this group uses the keys of `store`.
  std::shared_ptr<const Roster> roster = nullptr;
  /// The contacts of the ranks on this rank's host, including this rank, by rank; empty if it is alone there.
  std::map<int, shm::Contact> contacts = {};
  /// The host page (shm::HostPage) that this rank made for the ranks of its host; null once they have joined.
  std::shared_ptr<const Descriptor> page = nullptr;
  /// Makes the communicator once the ranks know each other. Simulations replace this function.
  std::function<std::shared_ptr<Communicator>(const Rendezvous&, const std::vector<int>& hosts)> connect =
      connect_ranks;
  /// Number of groups that were split from this one, the same on every rank.
  mutable int splits = 0;
};

/// Connects to the other ranks. Ranks that do not know each other (`rendezvous.roster` is null) first meet in the
/// store. Collective.
///
/// The n-th call of a rank meets the n-th calls of the other ranks, so one store serves any number of groups one after
/// another. Each rank writes one entry, which rank 0 and the ranks of its host read, and rank 0 writes the roster,
/// which all others read. Each rank therefore makes at most 8 calls to the store, however many ranks there are. Throws
/// PeerLost with the ranks that do not come within the timeout, and Mismatch if ranks disagree about the world size or
/// the backend.
std::shared_ptr<Communicator> join(Rendezvous& rendezvous);

/// Joins as `join` does and returns a process group.
std::shared_ptr<ProcessGroup> join_as_group(const Rendezvous& rendezvous);

/// Returns the rendezvous of the next subgroup that is split from these ranks and contains this one. `members` are its
/// global ranks. They know each other, so they read nothing from the store. Makes a host page for the members on this
/// rank's host. Throws shm::Obstacle.
Rendezvous subgroup_of(const Rendezvous& all, const std::string& name, const std::vector<int>& members);

/// Makes a subgroup of this rank alone. Not collective.
std::shared_ptr<ProcessGroup> group_of_one(const ProcessGroup& all, const std::string& name);

}  // namespace fsdp
