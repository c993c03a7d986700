#include "comm/join.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/c10d_communicator.h"
#include "comm/check.h"
#include "comm/fault_point.h"
#include "comm/gloo_backend.h"
#include "comm/local_communicator.h"
#include "comm/network.h"
#include "comm/shm/segment.h"
#include "comm/shm/shm_communicator.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <sstream>
#include <vector>

namespace fsdp {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::string_view kOperation = "init_process_group";

std::string member_key(int rank) { return c10::str("member/", rank); }

// Keys of this group alone.
StorePtr group_store(const Membership& membership, const StorePtr& store) {
  auto attempt =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("fsdp/attempt_", membership.rendezvous.attempt), store);
  const auto round = attempt->add(c10::str("joined/", membership.rank()), 1);
  return c10::make_intrusive<c10d::PrefixStore>(c10::str("group_", round), attempt);
}

void wait_for_members(const Membership& membership, c10d::Store& store, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < membership.world_size(); ++rank) keys.push_back(member_key(rank));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception&) {
    std::string missing;
    int first = -1;
    for (int rank = 0; rank < membership.world_size(); ++rank) {
      if (store.check({member_key(rank)})) continue;
      missing += c10::str(missing.empty() ? "" : ", ", rank);
      if (first < 0) first = rank;
    }
    if (first < 0) return;
    throw PeerLost(first, c10::str(where(membership.rank(), membership.world_size(), kOperation), "waited ",
                                   in_seconds(timeout), " for ", membership.world_size(), " ranks; missing: rank ",
                                   missing, ". Start every rank with the same address and world size."));
  }
}

// What must be the same on every rank.
std::string claims_of(const Membership& membership) {
  std::string claims = c10::str("world size ", membership.world_size(), ", backend ", membership.backend);
  if (membership.device_backend)
    claims += c10::str(" and one for ", c10::DeviceTypeName(membership.device_backend->device.type(), true));
  return claims;
}

// What a rank tells the others about itself. One line per field.
struct Member {
  std::string claims;    // see claims_of()
  std::string domain;    // see loopback_domain()
  std::string obstacle;  // why it cannot share memory; empty if it can
  std::string listener;  // the name of its Unix socket

  std::string encode() const { return claims + '\n' + domain + '\n' + obstacle + '\n' + listener; }
  static Member decode(const std::string& text) {
    std::istringstream lines(text);
    Member member;
    for (auto* field : {&member.claims, &member.domain, &member.obstacle, &member.listener})
      std::getline(lines, *field);
    return member;
  }
};

// Every rank's Member, in the order of ranks.
std::vector<Member> meet(const Membership& membership, const Member& own, c10d::Store& store,
                         std::chrono::milliseconds timeout) {
  fault_point("joining");
  store.set(member_key(membership.rank()), own.encode());
  wait_for_members(membership, store, timeout);
  std::vector<Member> members;
  for (int rank = 0; rank < membership.world_size(); ++rank)
    members.push_back(Member::decode(store.get_to_str(member_key(rank))));
  store.set(c10::str("read/", membership.rank()), "");
  fault_point("joined");
  return members;
}

void compare_claims(const Membership& membership, const std::vector<Member>& members) {
  const auto& own = members[static_cast<size_t>(membership.rank())].claims;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].claims == own) continue;
    throw Mismatch(c10::str(where(membership.rank(), membership.world_size(), kOperation), "ranks disagree: rank ",
                            membership.rank(), " has ", own, "; rank ", rank, " has ", members[rank].claims,
                            ". Start every rank with the same settings."));
  }
}

// Rank 0 may host the store: before it fails it lets the others read what it read, so that they fail alike.
void let_others_read(const Membership& membership, c10d::Store& store) {
  if (membership.rank() != 0) return;
  std::vector<std::string> keys;
  for (int rank = 1; rank < membership.world_size(); ++rank) keys.push_back(c10::str("read/", rank));
  try {
    store.wait(keys, std::chrono::seconds(5));
  } catch (const std::exception&) {
    // Whoever is gone need not read.
  }
}

// Why the ranks cannot share memory, in one sentence; empty if they can.
std::string obstacle_between(const std::vector<Member>& members) {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].domain != members[0].domain)
      return c10::str("rank 0 and rank ", rank, " are on different hosts or in different network namespaces");
    if (!members[rank].obstacle.empty()) return c10::str("rank ", rank, ": ", members[rank].obstacle);
  }
  return "";
}

// Backend "shm" insists on shared memory; "cpu" does without it and says why if that is strange.
bool uses_shared_memory(const Membership& membership, const std::vector<Member>& members) {
  if (membership.backend != "shm" && membership.backend != "cpu") return false;
  const std::string obstacle = obstacle_between(members);
  if (obstacle.empty()) return true;
  require(membership.backend == "cpu", where(membership.rank(), membership.world_size(), kOperation),
          "the backend \"shm\" needs memory that all ranks share: ", obstacle,
          ". Use the backend \"gloo\" or \"cpu\".");
  const bool one_host = std::all_of(members.begin(), members.end(),
                                    [&](const Member& member) { return member.domain == members[0].domain; });
  if (one_host && membership.rank() == 0)
    std::cerr << "fsdp: the ranks of this host use Gloo instead of shared memory: " << obstacle << ".\n";
  return false;
}

// Ranks that lost another one while they set up shared memory name the same one: the first that any of them lost.
// Whoever ends because of it is lost to the others too.
[[noreturn]] void agree_on_lost(const Membership& membership, c10d::Store& store, const PeerLost& error) {
  int first = error.rank();
  try {
    first = std::stoi(store.compareSet("lost", "", c10::str(first)));
  } catch (const std::exception&) {
    // The store went with the rank that hosted it.
  }
  if (first == error.rank()) throw error;
  throw PeerLost(first, c10::str(where(membership.rank(), membership.world_size(), kOperation), "rank ", first,
                                 " is lost, another rank says. Look at its output, then start all ranks again."));
}

std::shared_ptr<Communicator> join_over_network(const Membership& membership, const StorePtr& store, bool one_host,
                                                std::chrono::milliseconds timeout, bool store_in_rank_0) {
  const auto& rendezvous = membership.rendezvous;
  const std::string address = one_host                  ? "127.0.0.1"
                              : rendezvous.host.empty() ? ""
                                                        : address_towards(rendezvous.host, rendezvous.port);
  C10dOptions options;
  options.rank = membership.rank();
  options.world_size = membership.world_size();
  options.timeout = timeout;
  options.roll_call.store_in_rank_0 = store_in_rank_0;
  options.roll_call.answer_time =
      std::clamp(timeout / 2, std::chrono::milliseconds(500), options.roll_call.answer_time);
  options.control = [address](const StorePtr& lane, int rank, int world_size, std::chrono::milliseconds limit) {
    return make_gloo_backend(lane, rank, world_size, limit, address);
  };
  if (membership.device_backend) {
    options.data_device = membership.device_backend->device;
    options.data = membership.device_backend->make;
  }
  return make_c10d_communicator(store, std::move(options));
}

std::shared_ptr<Communicator> join_members(const Membership& membership, const StorePtr& own,
                                           std::chrono::milliseconds timeout, bool store_in_rank_0) {
  Member self{claims_of(membership), loopback_domain(), "", ""};
  std::optional<shm::Listener> listener;
  try {
    if (membership.backend == "shm" || membership.backend == "cpu") {
      self.obstacle = shared_memory_obstacle();
      self.listener = listener.emplace().name();
    }
  } catch (const shm::Obstacle& obstacle) {
    self.obstacle = obstacle.what();
  }
  const auto members = meet(membership, self, *own, timeout);
  const bool one_host =
      std::all_of(members.begin(), members.end(), [&](const Member& member) { return member.domain == self.domain; });
  try {
    compare_claims(membership, members);
    if (!uses_shared_memory(membership, members))
      return join_over_network(membership, own, one_host, timeout, store_in_rank_0);
    std::vector<std::string> names;
    for (const auto& member : members) names.push_back(member.listener);
    return make_shm_communicator(*listener, names, membership.rank(), timeout);
  } catch (const PeerLost& error) {
    agree_on_lost(membership, *own, error);
  } catch (const c10::DistError&) {
    throw;  // the store's own
  } catch (const std::exception&) {
    let_others_read(membership, *own);
    throw;
  }
}

}  // namespace

std::shared_ptr<Communicator> join(const Membership& membership, const StorePtr& store,
                                   std::chrono::milliseconds timeout, bool store_in_rank_0) {
  if (membership.world_size() == 1) return make_local_communicator();
  const std::string place = where(membership.rank(), membership.world_size(), kOperation);
  try {
    const StorePtr own = group_store(membership, store);
    own->setTimeout(timeout);
    return join_members(membership, own, timeout, store_in_rank_0);
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError& error) {
    raise(store_lost(membership.rank(), store_in_rank_0, first_line(error.what()), ""), place);
  } catch (const std::exception& error) {
    throw Error(c10::str(place, "could not connect to the other ranks: ", first_line(error.what())));
  }
}

}  // namespace fsdp
