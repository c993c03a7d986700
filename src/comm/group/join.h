#pragma once
/// \file
/// From a membership to a communicator.

#include <fsdp/communicator.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/core/traffic_count.h"
#include "comm/failure/alarm.h"
#include "comm/group/membership.h"
#include "comm/shm/peers.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// Where ranks meet, and this one's place among them.
struct Meeting {
  Membership membership;
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout{};
  /// See RollCallOptions.
  bool store_in_rank_0 = false;
  /// The same for the groups that are split from this one.
  std::shared_ptr<shm::OwnRank> own_rank = std::make_shared<shm::OwnRank>();
  std::shared_ptr<Alarm> alarm = std::make_shared<Alarm>();
  std::shared_ptr<TrafficCount> traffic = std::make_shared<TrafficCount>();
};

struct Joined {
  std::shared_ptr<Communicator> communicator;
  /// By rank: the number of its host.
  std::vector<int> hosts;
};

/// Meets the other ranks in the store and connects to them. Collective.
///
/// The n-th call of a rank meets the n-th calls of the others, so one store serves any number of groups one after
/// another. Throws PeerLost naming the ranks that do not come within the timeout, Mismatch if ranks disagree about the
/// world size or backend.
Joined join(const Meeting& meeting);

/// The same, as a process group.
std::shared_ptr<ProcessGroup> meet_as_group(const Meeting& meeting);

/// A subgroup of this rank alone, which needs nobody else.
std::shared_ptr<ProcessGroup> group_of_one(const ProcessGroup& all, const std::string& name);

}  // namespace fsdp
