#pragma once
/// \file
/// From a membership to a communicator.

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

/// The communicator of ranks that know each other: of the kind that the backend and the hosts call for. Collective.
std::shared_ptr<Communicator> connect_ranks(const Rendezvous& rendezvous, const std::vector<int>& hosts);

/// Where ranks meet, and this one's place among them.
struct Rendezvous {
  Membership membership;
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout{};
  /// See RollCallOptions.
  bool store_in_rank_0 = false;
  /// The same for the groups that are split from this one.
  std::shared_ptr<shm::OwnRank> own_rank = std::make_shared<shm::OwnRank>();
  std::shared_ptr<Alarm> alarm = std::make_shared<Alarm>();
  std::shared_ptr<TrafficCount> traffic = std::make_shared<TrafficCount>();
  /// What the ranks know of each other: of a subgroup from the start, else null until they have met, when the store is
  /// one of this group's keys alone, too.
  std::shared_ptr<const Roster> roster = nullptr;
  /// By rank, how to find those on this one's host, itself among them; none if it is alone there.
  std::map<int, shm::Contact> contacts = {};
  /// What this rank has made for them to meet on; null once they have.
  std::shared_ptr<const Descriptor> page = nullptr;
  /// Called once the ranks know each other; simulations have one of their own.
  std::function<std::shared_ptr<Communicator>(const Rendezvous&, const std::vector<int>& hosts)> connect =
      connect_ranks;
  /// How many groups were split from this one, the same on every rank.
  mutable int splits = 0;
};

/// Connects to the other ranks, after all have met in the store unless they know each other: then `rendezvous` says
/// what they know. Collective.
///
/// The n-th call of a rank meets the n-th calls of the others, so one store serves any number of groups one after
/// another. Each rank writes one entry, which rank 0 and the ranks of its host read; rank 0 writes the roster, which
/// all others read: at most 8 calls of the store a rank, however many there are. Throws PeerLost naming the ranks that
/// do not come within the timeout, Mismatch if ranks disagree about the world size or backend.
std::shared_ptr<Communicator> join(Rendezvous& rendezvous);

/// The same, as a process group.
std::shared_ptr<ProcessGroup> join_as_group(const Rendezvous& rendezvous);

/// Where the next subgroup split from these ranks meets: this rank's, of `members`, their global ranks. They know each
/// other, so they read nothing in the store. Makes a page for those on this rank's host. Throws shm::Obstacle.
Rendezvous subgroup_of(const Rendezvous& all, const std::string& name, const std::vector<int>& members);

/// A subgroup of this rank alone, which needs nobody else.
std::shared_ptr<ProcessGroup> group_of_one(const ProcessGroup& all, const std::string& name);

}  // namespace fsdp
